"""`groupnorm formula-gap`: how far the printed formula is from the gradient, on files."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from .. import files
from ..compare import source
from ..gap import FormulaGap, formula_gap
from ..golden.request import INPUTS, PRINTED
from ..golden.store import read_manifest
from ..reference import to_float64
from ..spec import Array, check_printed

PICTURES = (".png", ".svg", ".pdf")
_IN = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUT = click.Path(dir_okay=False, path_type=Path)


@click.command("formula-gap")
@click.argument("archive", metavar="FILE", type=_IN)
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), help="bfloat16: of uint16 arrays.")
@click.option("--json", "json_path", type=_OUT, metavar="FILE", help="Where the figures go.")
@click.option("--plot", "plot_path", type=_OUT, metavar="FILE", help="Where a picture goes (.png, .svg, .pdf).")
def formula_gap_command(archive: Path, dtype: str | None, json_path: Path | None, plot_path: Path | None) -> None:
    """Show how far aclnnGroupNormalizationGrad's printed formula is from the gradient on these inputs.

    FILE is an .npz that holds x, dy, gamma, mean and rstd as the operator takes them, or a case.json of groupnorm
    golden. The gap is 0 where gamma is 1, and grows with |1 - gamma|.

    \b
    Example:
      groupnorm formula-gap inputs.npz
      groupnorm formula-gap golden/odd-printed-float32-community-s1/case.json --plot gap.png
    """
    if plot_path is not None and plot_path.suffix not in PICTURES:
        raise click.UsageError(f"--plot: {plot_path}; accepted: a name that ends in {', '.join(PICTURES)}")
    if plot_path is not None and importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError("--plot: matplotlib is not installed; accepted with the extra groupnorm[bench]")
    arrays, read = _read(archive, dtype)
    files.check_targets({"--json": json_path, "--plot": plot_path}, read)
    check_printed(**arrays)
    for name, array in arrays.items():
        odd = int(np.count_nonzero(~np.isfinite(array)))
        if odd:
            raise ValueError(f"{name}: {odd} elements are not finite; accepted: finite numbers, which a gap is between")
    gap = formula_gap(**arrays)
    if json_path is not None:
        figures = {k: v if math.isfinite(v) else str(v) for k, v in gap._asdict().items()}
        files.write_text(json_path, json.dumps(figures, indent=1) + "\n")
    if plot_path is not None:
        _draw(arrays, gap, plot_path)
    table = Table(title="printed formula minus gradient")
    for column in ("", "largest", "root of mean square"):
        table.add_column(column, justify="right")
    table.add_row("absolute", f"{gap.max_abs:.6g}", f"{gap.rms_abs:.6g}")
    table.add_row("of the gradient's", f"{gap.max_rel:.4%}", f"{gap.rms_rel:.4%}")
    Console().print(table)


def _read(path: Path, dtype: str | None) -> tuple[dict[str, Array], list[Path]]:
    """The arrays, and every file that was read for them."""
    if path.suffix == ".json":
        if dtype is not None:
            raise click.UsageError(f"--dtype: {dtype} with {path}, which says it; accepted: with an .npz")
        cases = list(read_manifest(path))
        if len(cases) != 1 or cases[0].request.op != PRINTED:
            raise ValueError(f"FILE: {path}; accepted: a case.json of one case of {PRINTED}")
        source.check_hashes(cases)
        arrays = {name: tensor.whole() for name, tensor in source.read_inputs(cases[0]).items()}
        return arrays, [path, *cases[0].files()]
    if path.suffix != ".npz":
        raise ValueError(f"FILE: {path}; accepted: an .npz of {', '.join(INPUTS)}, or a case.json")
    arrays = files.read_npz(path, INPUTS)
    for name in INPUTS:
        if name not in arrays:
            raise ValueError(f"{name}: not in {path}; accepted: an .npz of {', '.join(INPUTS)}")
    chosen = None if dtype is None else files.DTYPES[dtype]
    arrays = {name: files.as_dtype(name, array, chosen) for name, array in arrays.items()}
    if chosen is not None and arrays["x"].dtype != chosen:
        raise TypeError(f"--dtype: {dtype}, x has dtype {arrays['x'].dtype}; accepted: the dtype of x")
    return arrays, [path]


def _draw(arrays: dict[str, Array], gap: FormulaGap, path: Path) -> None:
    """Printed against true gradient, and the gap against gamma; at most 20,000 elements, evenly over x."""
    from matplotlib.figure import Figure

    n, g, *rest = arrays["x"].shape
    x, dy, gamma = (to_float64(arrays[k]).reshape(n, g, math.prod(rest)) for k in ("x", "dy", "gamma"))
    mean, rstd = (to_float64(arrays[n])[:, :, None] for n in ("mean", "rstd"))
    xhat = (x - mean) * rstd
    s1, s2 = ((dy * gamma * t).sum(2, keepdims=True) / max(1, x.shape[2]) for t in (1, xhat))
    true = rstd * (dy * gamma - s1 - xhat * s2)
    printed = rstd * gamma * (dy - s1 - xhat * s2)
    step = max(1, x.size // 20000)
    true, printed, gamma = (a.reshape(-1)[::step] for a in (true, printed, gamma))
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    low, high = min(true.min(initial=0), printed.min(initial=0)), max(true.max(initial=0), printed.max(initial=0))
    left.plot([low, high], [low, high], color="0.6", linewidth=1)
    left.scatter(true, printed, s=4, alpha=0.5)
    left.set(xlabel="gradient", ylabel="printed formula", title="dx of both")
    right.axhline(0, color="0.6", linewidth=1)
    right.scatter(gamma, printed - true, s=4, alpha=0.5)
    right.set(xlabel="gamma", ylabel="printed - gradient", title=f"largest gap {gap.max_rel:.1%} of the gradient")
    with files.whole(path) as unfinished:
        figure.savefig(unfinished, dpi=120, format=path.suffix[1:], metadata={} if path.suffix == ".png" else None)

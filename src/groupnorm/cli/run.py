"""`groupnorm run`: one operator on arrays from files."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

import groupnorm

from .. import _core, files, spec
from ..spec import Array
from .options import parse_shape

NAMES = ("x", "dy", "gamma", "mean", "rstd")
PRINTED = "group_normalization_grad"
TRUE = "group_norm_backward"
DEFAULT_EPS = 1e-5

_IN = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUT = click.Path(dir_okay=False, path_type=Path)


class Request(NamedTuple):
    """The options that say how to read."""

    op: str
    dtype: np.dtype[np.generic] | None
    shape: tuple[int, ...] | None
    num_groups: int | None


@click.command()
@click.argument("archive", metavar="[FILE.npz]", type=_IN, required=False)
@click.option("--x", type=_IN, help="Input, [N, G, *] for the printed formula, [N, C, *] for the gradient.")
@click.option("--dy", type=_IN, help="Upstream gradient, x's shape.")
@click.option("--gamma", type=_IN, help="Scale: x's shape (or [C] with --num-groups); [C] for the gradient.")
@click.option("--mean", type=_IN, help="Mean of each group, [N, G].")
@click.option("--rstd", type=_IN, help="1 / sqrt(variance + eps) of each group, [N, G].")
@click.option("--op", type=click.Choice([PRINTED, TRUE]), default=PRINTED, show_default=True)
@click.option("--dtype", type=click.Choice(list(files.DTYPES)), help="Of .bin files; bfloat16 also for uint16 arrays.")
@click.option("--shape", callback=parse_shape, help="Of x in a .bin file, e.g. 2,8,4,6.")
@click.option("--num-groups", type=click.IntRange(1), help="Groups of x [N, C, *]; also makes missing mean and rstd.")
@click.option("--eps", type=float, default=DEFAULT_EPS, show_default=True, help="For statistics made from x.")
@click.option("--recenter", is_flag=True, help="The gradient: also subtract the mean of xhat.")
@click.option("--threads", type=int, help="Up to so many threads.")
@click.option("-o", "--out", type=_OUT, required=True, help="dx (.npy, .bin), or all outputs (.npz).")
@click.option("--dgamma", type=_OUT, help="The gradient: where dgamma goes (.npy, .bin).")
@click.option("--dbeta", type=_OUT, help="The gradient: where dbeta goes (.npy, .bin).")
def run(
    archive: Path | None,
    op: str,
    dtype: str | None,
    shape: tuple[int, ...] | None,
    num_groups: int | None,
    eps: float,
    recenter: bool,
    threads: int | None,
    out: Path,
    dgamma: Path | None,
    dbeta: Path | None,
    **paths: Path | None,
) -> None:
    """Compute one operator on arrays from files and write the result.

    x, dy, gamma, mean and rstd come from FILE.npz under these names, or each from a file of its own
    (.npy, or raw .bin with --dtype and --shape). Without mean and rstd, --num-groups makes them from x, for the
    printed formula rounded to x's dtype. bfloat16 is uint16 in files, going in and coming out.

    \b
    Example:
      groupnorm run inputs.npz -o dx.npy
      groupnorm run --op group_norm_backward --x x.npy --dy dy.npy --num-groups 32 -o grads.npz
    """
    request = Request(op, None if dtype is None else files.DTYPES[dtype], shape, num_groups)
    targets = {"dx": out, "dgamma": dgamma, "dbeta": dbeta}
    _check_targets(op, targets)
    named = {"--out": out, "--dgamma": dgamma, "--dbeta": dbeta}
    files.check_targets(named, [path for path in (archive, *paths.values()) if path is not None])
    if recenter and op == PRINTED:
        raise click.UsageError(f"--recenter: accepted with --op {TRUE} alone")
    if shape is not None and not any(path is not None and path.suffix == ".bin" for path in paths.values()):
        raise click.UsageError("--shape: accepted with .bin files alone")
    arrays = _read(archive, paths, request)
    if eps != DEFAULT_EPS and "mean" in arrays:
        raise click.UsageError("--eps: accepted where mean and rstd are made from x, and they are given")
    _complete(arrays, request, eps, threads)

    started = time.perf_counter()
    if op == PRINTED:
        operands = {name: arrays[name] for name in NAMES}
        results: dict[str, Array] = {"dx": groupnorm.group_normalization_grad(**operands, num_threads=threads)}
    else:
        wanted = (True, *(out.suffix == ".npz" or targets[name] is not None for name in ("dgamma", "dbeta")))
        grads = groupnorm.group_norm_backward(
            *(arrays["dy"], arrays["x"], arrays["mean"], arrays["rstd"], arrays.get("gamma")),
            output_mask=wanted,
            recenter=recenter,
            num_threads=threads,
        )
        results = {name: value for name, value in grads._asdict().items() if value is not None}
    seconds = time.perf_counter() - started

    _write(results, targets, request)
    _report(op, arrays, results, seconds, threads)


def _check_targets(op: str, targets: dict[str, Path | None]) -> None:
    out = targets["dx"]
    for name, path in targets.items():
        option = "--out" if name == "dx" else f"--{name}"
        if path is None:
            continue
        if name != "dx" and (op == PRINTED or (out is not None and out.suffix == ".npz")):
            why = "the printed formula has no such output" if op == PRINTED else "--out is an archive of all outputs"
            raise click.UsageError(f"{option}: {path}; accepted: nothing here, {why}")
        accepted = files.SUFFIXES if name == "dx" else (".npy", ".bin")
        if path.suffix not in accepted:
            raise click.UsageError(f"{option}: {path}; accepted: a name that ends in {', '.join(accepted)}")


def _read(archive: Path | None, paths: dict[str, Path | None], request: Request) -> dict[str, Array]:
    arrays = {} if archive is None else files.read_npz(archive, NAMES)
    for name in NAMES:  # x before the others: their shapes follow from it
        path = paths[name]
        if path is None:
            continue
        if path.suffix == ".bin":
            arrays[name] = _read_bin(name, path, arrays, request)
        elif path.suffix == ".npy":
            arrays[name] = files.read_npy(name, path)
        else:
            raise click.UsageError(f"--{name}: {path}; accepted: a .npy or .bin file")
    return {name: files.as_dtype(name, array, request.dtype) for name, array in arrays.items()}


def _read_bin(name: str, path: Path, arrays: dict[str, Array], request: Request) -> Array:
    if request.dtype is None:
        raise click.UsageError(f"--{name}: {path} has no header; accepted: .bin files with --dtype")
    shape = request.shape if request.shape is not None else arrays["x"].shape if "x" in arrays else None
    if shape is None:
        raise click.UsageError(f"--{name}: {path} has no header; accepted: .bin files with --shape")
    if len(shape) < 2:
        raise click.UsageError(f"--shape: {shape}; accepted: two dimensions and more, [N, C, *]")
    parameter = (request.dtype, np.dtype(np.float32)) if request.dtype.itemsize == 2 else (request.dtype,)
    if name in ("x", "dy"):
        return files.read_bin(name, path, shape, (request.dtype,))
    if name == "gamma":
        per_channel = math.prod(shape[1:2])
        if request.op == TRUE:
            return files.read_bin(name, path, (per_channel,), parameter)
        small = request.num_groups and path.stat().st_size == per_channel * request.dtype.itemsize
        return files.read_bin(name, path, (per_channel,) if small else shape, (request.dtype,))
    groups = request.num_groups or shape[1]
    return files.read_bin(name, path, (shape[0], groups), parameter if request.op == TRUE else (request.dtype,))


def _complete(arrays: dict[str, Array], request: Request, eps: float, threads: int | None) -> None:
    """Regroups for the printed formula and makes statistics that are missing."""
    for name in ("x", "dy"):
        if name not in arrays:
            raise click.UsageError(f"{name}: not given; accepted: --{name}, or FILE.npz that holds it")
    if "gamma" not in arrays and request.op == PRINTED:
        raise click.UsageError("gamma: not given; accepted: --gamma, or FILE.npz that holds it")
    x, groups = arrays["x"], request.num_groups
    if request.dtype is not None and x.dtype != request.dtype:
        raise click.UsageError(f"--dtype: {request.dtype}, x has dtype {x.dtype}; accepted: the dtype of x")
    missing = [name for name in ("mean", "rstd") if name not in arrays]
    if groups is None and missing:
        raise click.UsageError(f"{missing[0]}: not given; accepted: --{missing[0]}, or --num-groups to make it from x")
    if len(missing) == 1:
        raise click.UsageError(f"{missing[0]}: not given, its fellow is; accepted: both or neither")
    if groups is not None:
        if missing:
            _, mean, rstd = groupnorm.group_norm(x, groups, eps=eps, num_threads=threads)
            if request.op == PRINTED:
                mean, rstd = mean.astype(x.dtype), rstd.astype(x.dtype)
            arrays.update(mean=mean, rstd=rstd)
        elif arrays["mean"].shape[1:] != (groups,):
            found = arrays["mean"].shape
            raise click.UsageError(
                f"--num-groups: {groups}, mean has shape {found}; accepted: mean of shape [N, {groups}]"
            )
        if request.op == PRINTED:
            _regroup(arrays, groups)
    elif request.op == PRINTED and arrays["gamma"].ndim == 1 != x.ndim:
        raise click.UsageError(
            f"gamma: shape {arrays['gamma'].shape} with x {x.shape}; accepted: x's shape, or [C] with --num-groups"
        )


def _regroup(arrays: dict[str, Array], groups: int) -> None:
    """[N, C, *] as [N, G, C / G, *], gamma [C] broadcast."""
    x, gamma = arrays["x"], arrays["gamma"]
    if x.ndim < 2 or x.shape[1] % groups:
        raise click.UsageError(f"--num-groups: {groups}, x has shape {x.shape}; accepted: a divisor of C")
    if gamma.shape == x.shape[1:2]:
        gamma = np.broadcast_to(gamma.reshape(-1, *(1,) * (x.ndim - 2)), x.shape)
    spec.check_shape("gamma", gamma, x.shape, "the shape of x, or one element per channel")
    spec.check_shape("dy", arrays["dy"], x.shape, "the shape of x")
    shape = (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    arrays.update(x=x.reshape(shape), dy=arrays["dy"].reshape(shape), gamma=gamma.reshape(shape))


def _report(op: str, arrays: dict[str, Array], results: dict[str, Array], seconds: float, threads: int | None) -> None:
    moved = sum(array.nbytes for array in (*arrays.values(), *results.values()))
    table = Table(title=op, show_header=False)
    rows: list[tuple[str, Any]] = [
        ("x", "x".join(map(str, arrays["x"].shape))),
        ("dtype", spec.dtype_name(results["dx"].dtype)),
        ("groups", arrays["mean"].shape[1]),
        ("SIMD level", _core.current_isa()),
        ("threads, at most", groupnorm.get_num_threads() if threads is None else threads),
        ("time of this one call", f"{seconds * 1e3:.3f} ms"),
        ("traffic", f"{moved / seconds / 1e9:.2f} GB/s"),
    ]
    if op == PRINTED:
        gap = groupnorm.formula_gap(*(arrays[name] for name in NAMES))
        ones = bool((arrays["gamma"] == 1).all())
        if gap.max_abs == 0:
            rows.append(("formula gap", "0 (gamma is 1)" if ones else "0"))
        else:
            rows.append(("formula gap, max", f"{gap.max_abs:.4g} ({gap.max_rel:.2%} of the largest gradient)"))
            rows.append(("formula gap, RMS", f"{gap.rms_abs:.4g} ({gap.rms_rel:.2%} of the gradient)"))
    for name, value in rows:
        table.add_row(name, Text(str(value)))
    console = Console()
    console.print(table)
    if op == PRINTED and not ones:
        console.print(f"gamma is not 1: this dx is not the gradient, which --op {TRUE} computes.")


def _write(results: dict[str, Array], targets: dict[str, Path | None], request: Request) -> None:
    if request.op == PRINTED and request.num_groups is not None:
        n, groups, d, *rest = results["dx"].shape
        results = {"dx": results["dx"].reshape(n, groups * d, *rest)}
    out = targets["dx"]
    assert out is not None
    if out.suffix == ".npz":
        files.write_all({out: results})
    else:
        files.write_all({path: {name: results[name]} for name, path in targets.items() if path is not None})

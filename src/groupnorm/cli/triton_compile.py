"""`groupnorm triton-compile`: the Triton kernels of a problem, compiled for devices that need not be here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

# What `--target` knows bandwidth and sizes of; the compiler takes others that are like them.
EXAMPLE = "cuda:90"


def _problem(operator: str, shape: str, num_groups: int, dtype: str, parameters: str | None, **flags: Any) -> Any:
    from ..triton.plan import Problem

    try:
        n, channels, *rest = (int(part) for part in shape.split(","))
    except ValueError:
        raise click.BadParameter(f"{shape!r}; accepted: N,C,... such as 8,320,64,64", param_hint="--shape") from None
    length = 1
    for size in rest:
        length *= size
    if min(n, channels, length) < 1 or num_groups < 1 or channels % num_groups:
        raise click.BadParameter(
            f"{shape!r} with {num_groups} groups; accepted: positive sizes, and groups that divide C",
            param_hint="--shape",
        )
    other = parameters or dtype
    if operator == "printed":
        d = channels // num_groups
        return Problem(
            "printed", n, num_groups, d * length, num_groups, dtype, None, None, dtype, output_mask=(True, False, False)
        )
    beta = other if flags["silu"] or operator == "forward" else None
    stats = "float32" if operator == "forward" else other
    return Problem(operator, n, channels, length, num_groups, dtype, other, beta, stats, **flags)  # type: ignore[arg-type]


@click.command("triton-compile")
@click.option("--target", "targets", multiple=True, help="cuda:90, hip:gfx942, npu:Ascend910B3, ... or `all`; repeat.")
@click.option(
    "--operator", type=click.Choice(["backward", "printed", "forward"]), default="backward", show_default=True
)
@click.option("--shape", default="8,320,64,64", show_default=True, help="N,C,... of x.")
@click.option("--num-groups", default=32, show_default=True)
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), default="bfloat16", show_default=True)
@click.option("--parameters", type=click.Choice(["float32", "float16", "bfloat16"]), help="dtype of gamma, mean, rstd.")
@click.option("--channels-last", is_flag=True, help="x is [N, HxW, C] in memory.")
@click.option("--silu", is_flag=True, help="With the activation that follows.")
@click.option("--recenter", is_flag=True, help="With what the rounding of the mean left taken away.")
@click.option("--unaligned", is_flag=True, help="Pointers that are not multiples of 16 bytes.")
@click.option("--path", type=click.Choice(["resident", "cached", "split"]), help="In the place of the table's choice.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="A folder for the code of the kernels.")
@click.option("--json", "as_json", is_flag=True, help="Lines of JSON in the place of a table.")
def triton_compile(
    targets: tuple[str, ...], operator: str, shape: str, num_groups: int, dtype: str, parameters: str | None,
    channels_last: bool, silu: bool, recenter: bool, unaligned: bool, path: Any, output: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Compile the kernels that a problem takes, and print what their code says: registers, spills, shared memory or
    unified buffer, widths of loads and stores, occupancy, and the time that memory alone would take.

    \b
    Example:
      groupnorm triton-compile --target cuda:90 --target hip:gfx942 --dtype bfloat16 --shape 8,320,64,64
    """
    try:
        from ..triton import compile as compiler
        from ..triton import plan as plans
        from ..triton.variants import name_of, schedule_of
    except ImportError as error:
        raise click.ClickException(str(error)) from error
    problem = _problem(
        operator, shape, num_groups, dtype, parameters, channels_last=channels_last, silu=silu, recenter=recenter
    )
    names = list(plans.CHIPS) if "all" in targets else list(targets or (EXAMPLE,))
    rows = []
    for name in names:
        try:
            target, chip = compiler.target_of(name), plans.chip_like(name)
            plan = plans.choose(problem, chip, path)
        except ValueError as error:
            raise click.ClickException(str(error)) from error
        steps = schedule_of(problem, plan).steps
        seconds, tensors = plans.modelled_seconds(problem, plan, chip), plans.tensors_moved(problem, plan)
        for step in steps:
            try:
                compiled = compiler.compile_step(step, problem, target, aligned=not unaligned)
                report = compiler.report(compiled, step, target, chip)
            except Exception as error:  # whatever a compiler raises is the answer
                raise click.ClickException(f"{name}, {step.kernel}: {error}") from error
            if output is not None:
                output.mkdir(parents=True, exist_ok=True)
                for kind, code in compiled.asm.items():
                    file = output / f"{name.replace(':', '-')}-{step.kernel}.{kind}"
                    if isinstance(code, (str, bytes)):
                        file.write_bytes(code.encode() if isinstance(code, str) else code)
            rows.append(
                {"target": name, "variant": name_of(problem, plan), "programs": step.programs, "warps": step.warps}
                | report._asdict()
                | {"launches": len(steps), "tensors_moved": tensors, "modelled_us": seconds * 1e6}
            )
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    columns = (
        "target",
        "kernel",
        "programs",
        "warps",
        "registers",
        "spills",
        "shared",
        "load_bits",
        "store_bits",
        "occupancy",
    )
    table = Table(title=f"{name_of(problem, plan)}, x [{shape}], G = {num_groups}")
    for column in columns:
        table.add_column(column.replace("_", " "), justify="left" if column in ("target", "kernel") else "right")
    for row in rows:
        cells = [f"{row[c]:.0%}" if c == "occupancy" else str(row[c]) for c in columns]
        table.add_row(*(Text(cell) for cell in cells))
    console = Console(width=max(Console().width, 112))
    console.print(table)
    for row in {row["target"]: row for row in rows}.values():
        console.print(
            f"{row['target']}: {row['launches']} launches, {row['tensors_moved']:.2f} tensors of x moved, "
            f"{row['modelled_us']:.1f} µs at the memory bandwidth of the data sheet (a model, not a measurement)",
            highlight=False,
        )  # fmt: skip

"""`groupnorm bench`: timings against rivals and the limit that memory sets."""

from __future__ import annotations

import fnmatch
import importlib.util
import json
import random
import shlex
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from .. import files
from ..bench import growth, measure, plot, result, setups, tables
from ..bench.rivals import RIVALS
from ..bench.setups import Setup
from ..threads import get_num_threads, resolve

_OUT = click.Path(dir_okay=False, path_type=Path)
PICTURES = (".png", ".svg", ".pdf")
# What --quick is: cases that take milliseconds, and no compiler.
QUICK_BYTES = 256 * 1024
QUICK_ROUNDS = 3
SLOW_RIVALS = ("torch.compile", "jax")
_COMMAND = "groupnorm.bench.command"


def _parse_threads(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> tuple[int, ...]:
    counts = []
    for value in values or ("1", "all"):
        if value != "all" and not value.isdecimal():
            raise click.BadParameter(f"{value!r}; accepted: a number, or all")
        counts.append(get_num_threads() if value == "all" else resolve(int(value)))
    return tuple(sorted(set(counts)))


def _parse_rivals(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = () if value == "none" else tuple(name.strip() for name in value.split(","))
    for name in names:
        if name not in RIVALS:
            raise click.BadParameter(f"{name!r}; accepted: none, or some of {','.join(RIVALS)}")
    return names


class _Remembering(click.Command):
    """Keeps the command line, which is stored with the result."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_COMMAND] = shlex.join(["groupnorm", "bench", *args])
        return super().parse_args(ctx, args)


@click.command(cls=_Remembering)
@click.option("--cases", "patterns", multiple=True, metavar="PATTERN", help="Cases by name, such as 'sd_*'.")
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(setups.DTYPES), help="mixed: bfloat16 and float32.")
@click.option("--layout", "layouts", multiple=True, type=click.Choice(setups.LAYOUTS))
@click.option("--operator", "operators", multiple=True, type=click.Choice(setups.OPERATORS))
@click.option("--threads", multiple=True, callback=_parse_threads, help="A number, or all; by default 1 and all.")
@click.option("--rounds", type=click.IntRange(measure.FEWEST_SAMPLES), help="Samples of each.  [default: 15]")
@click.option(
    "--budget", type=click.FloatRange(0, 3600), default=1.0, show_default=True, help="Seconds of samples each."
)
@click.option("--rivals", "names", callback=_parse_rivals, help="Some of them, or none: torch,jax.  [default: all]")
@click.option("--json", "json_path", type=_OUT, metavar="FILE", help="Where the result goes.")
@click.option("--plot", "plot_path", type=_OUT, metavar="FILE", help="Where the pictures go (.png, .svg, .pdf).")
@click.option("--growth", "grow", is_flag=True, help="Also time against N, C, HxW and threads (FILE-growth.png).")
@click.option("--list", "only_list", is_flag=True, help="Print what would be measured.")
@click.option("--quick", is_flag=True, help="Small cases, few rounds, no compiled rivals.")
def bench(
    patterns: tuple[str, ...],
    dtypes: tuple[str, ...],
    layouts: tuple[str, ...],
    operators: tuple[str, ...],
    threads: tuple[int, ...],
    rounds: int | None,
    budget: float,
    names: tuple[str, ...] | None,
    json_path: Path | None,
    plot_path: Path | None,
    grow: bool,
    only_list: bool,
    quick: bool,
) -> None:
    """Time the operators, rivals that are installed, and what memory allows, all in one run.

    A row is a case in a dtype and layout under an operator: backward (dx, dgamma, dbeta), backward-dx, printed (the
    printed formula), forward. Contestants take turns in random order; a figure is the median.

    \b
    Example:
      groupnorm bench --quick
      groupnorm bench --cases 'sd_*' --dtype float32 --rivals torch --json out.json --plot out.png
    """
    chosen = _choose(patterns, dtypes, layouts, operators, quick)
    if only_list:
        tables.print_setups(chosen)
        return
    _check_targets(json_path, plot_path)
    if names is None:
        names = tuple(name for name in RIVALS if not (quick and name in SLOW_RIVALS))
    if rounds is None:
        rounds = QUICK_ROUNDS if quick else 15
    versions, missing = measure.available(RIVALS, names)
    console = Console(stderr=True)
    for name, why in missing.items():
        console.print(f"{name} is not there and left out: {why}", markup=False, highlight=False)

    before = result.conditions(click.get_current_context().meta[_COMMAND])
    options = measure.Options(rounds, budget, threads, {name: RIVALS[name] for name in versions})
    rng = random.Random(1)
    rows, grown = [], []
    count = len(list(growth.points(max(threads)))) if grow else 0
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("", total=rounds * (len(chosen) + count))
        for setup in chosen:
            progress.update(bar, description=f"{setup.case.name} {setup.dtype} {setup.layout} {setup.operator}")
            rows += measure.measure(setup, options, rng, lambda: progress.advance(bar))
        if grow:
            few = options._replace(rivals={name: rival for name, rival in options.rivals.items() if name == "torch"})
            grown = growth.sweep(few, rng, lambda name: progress.update(bar, description=name, advance=rounds))

    found = result.complete(before, rows, rounds, versions, missing)
    if grow:
        found["growth"] = grown
    if json_path is not None:
        files.write_text(json_path, json.dumps(found, indent=1) + "\n")
    if plot_path is not None:
        with files.whole(plot_path) as unfinished:
            plot.draw(found, unfinished)
        if grow:
            with files.whole(plot_path.with_stem(f"{plot_path.stem}-growth")) as unfinished:
                plot.draw_growth(found, unfinished)
    tables.print_result(found)


def _choose(
    patterns: tuple[str, ...],
    dtypes: tuple[str, ...],
    layouts: tuple[str, ...],
    operators: tuple[str, ...],
    quick: bool,
) -> list[Setup]:
    """The standard setups that the options leave."""
    every = list(setups.standard())
    cases = list(dict.fromkeys(setup.case.name for setup in every))
    for pattern in patterns:
        if not fnmatch.filter(cases, pattern):
            raise click.UsageError(f"--cases: {pattern!r}; accepted: a name or a pattern of {', '.join(cases)}")
    chosen = [
        setup
        for setup in every
        if (not patterns or any(fnmatch.fnmatchcase(setup.case.name, pattern) for pattern in patterns))
        and (not dtypes or setup.dtype in dtypes)
        and (not layouts or setup.layout in layouts)
        and (not operators or setup.operator in operators)
        and (not quick or setup.x_bytes <= QUICK_BYTES)
    ]
    if not chosen:
        raise click.UsageError("these options leave no row; accepted: what --list prints")
    return chosen


def _check_targets(json_path: Path | None, plot_path: Path | None) -> None:
    files.check_targets({"--json": json_path, "--plot": plot_path})
    if plot_path is not None:
        if plot_path.suffix not in PICTURES:
            raise click.UsageError(f"--plot: {plot_path}; accepted: a name that ends in {', '.join(PICTURES)}")
        if importlib.util.find_spec("matplotlib") is None:
            raise click.UsageError("--plot: matplotlib is not installed; accepted with the extra groupnorm[bench]")

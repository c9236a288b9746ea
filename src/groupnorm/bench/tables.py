"""A result in the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import result
from .setups import Setup

# The load average from which figures are worth little.
BUSY = 0.5


def shape_of(shape: Iterable[int], num_groups: int) -> str:
    return f"{'x'.join(map(str, shape))}, G={num_groups}"


def _console() -> Console:
    """As wide as the terminal; where there is none, as wide as the tables."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def print_setups(setups: Iterable[Setup]) -> None:
    """What `--list` shows."""
    table = Table(title="rows of groupnorm bench, each for one thread and for all")
    for name in ("case", "x", "dtype", "layout", "operator"):
        table.add_column(name, no_wrap=True)
    for case, dtype, layout, operator in setups:
        table.add_row(case.name, shape_of(case.shape, case.num_groups), dtype, layout, operator)
    _console().print(table)


def _rows(found: result.Result) -> Table:
    rivals = list(found["rivals"])
    table = Table(title="groupnorm bench: medians; outputs given (allocating)")
    table.add_column("case", no_wrap=True)
    for name in ("operator, dtype, layout", "threads"):
        table.add_column(name)
    for name in ("ours, ms", "limit, ms", "ours / limit", *(f"{rival} / ours" for rival in rivals)):
        table.add_column(name, justify="right")
    for row in found["rows"]:
        ours = row["ms"]["ours"]
        bound = row["limit"]
        factor = "" if bound["factor"] == 1 else f" ({bound['kind']})"
        table.add_row(
            row["case"],
            f"{row['operator']}, {row['dtype']}, {row['layout']}",
            str(row["threads"]),
            f"{ours['given']['median']:.3g} ({ours['allocating']['median']:.3g})",
            f"{bound['ms']:.3g}{factor}",
            _ratio(result.share_of_limit(row)),
            *(_ratio(result.against(row, name, "given")) for name in rivals),
        )
    return table


def _summary(found: result.Result) -> Table:
    rivals = list(found["rivals"])
    table = Table(title="geometric means")
    table.add_column("rows")
    for name in ("threads", "count", "ours / limit", *(f"{rival} / ours" for rival in rivals)):
        table.add_column(name, justify="right")
    for means in found["summary"]:
        of = means["rivals / ours"]
        table.add_row(
            means["selection"],
            str(means["threads"]),
            str(means["rows"]),
            _ratio(means["ours / limit"]),
            *(f"{_ratio(of[n]['given'])} ({_ratio(of[n]['allocating'])})" if n in of else "-" for n in rivals),
        )
    return table


def notes(found: result.Result) -> list[str]:
    """What one has to know to read the figures."""
    lines = [
        f"{found['machine']}, {found['isa']}, malloc: {found['malloc']}, {found['rounds']} rounds, {found['date']}.",
        "Limit: the faster of two triads in the same run, which read and write as many tensors as the operator has "
        "to; times the factor beside it where what is kept between reduce and apply exceeds a thread's share of the "
        "caches.",
        "Rivals: whichever of their ways is faster, against ours with outputs given (in brackets: both allocating).",
    ]
    if found["load"] > BUSY:
        lines.append(
            f"The machine was busy (load {found['load']:.1f} before the run): libraries whose threads wait for each "
            "other in loops, as those of OpenMP, then take milliseconds where they need microseconds."
        )
    scaling = found["scaling"]
    if scaling is not None:
        lines.append(
            f"{scaling['threads']} threads against one, where all tensors fit the last cache: "
            f"{scaling['speedup']:.2f} times as fast ({scaling['rows']} setups)."
        )
    lines += [f"{name} is not there: {why}" for name, why in found["missing"].items()]
    reasons = dict.fromkeys((name, why) for row in found["rows"] for name, why in row["left_out"].items())
    lines += [f"{name} is left out of rows: {why}" for name, why in reasons]
    return lines


def print_result(found: result.Result) -> None:
    """The rows, the means and the notes."""
    console = _console()
    console.print(_rows(found))
    console.print(_summary(found))
    for line in notes(found):
        console.print(Text(line))

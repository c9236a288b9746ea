"""How cost grows with N, C, HxW and threads, one at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from ..cases import Case
from .measure import Options, Row, measure
from .setups import Setup

_N, _C, _SIDE, _GROUPS = 8, 256, 32, 32

AXES = {
    "N": (1, 2, 4, 8, 16, 32, 64),
    "C": (32, 64, 128, 256, 512, 1024, 2048),
    "HxW": (1, 4, 16, 64, 256, 1024, 4096, 16384),
}


def _shape(axis: str, value: int) -> tuple[int, ...]:
    sides = {"N": (value, _C, _SIDE, _SIDE), "C": (_N, value, _SIDE, _SIDE)}
    return sides.get(axis, (_N, _C, value))


def points(threads: int) -> Iterator[tuple[str, int, Setup, int]]:
    """The axis, the value on it, the setup and the number of threads."""
    for axis, values in AXES.items():
        for value in values:
            case = Case(f"growth_{axis}_{value}", _shape(axis, value), _GROUPS)
            yield axis, value, Setup(case, "float32", "contiguous", "backward"), threads
    case = Case("growth_threads", (_N, _C, _SIDE, _SIDE), _GROUPS)
    counts = sorted({2**k for k in range(threads.bit_length())} | {threads})
    for count in counts:
        yield "threads", count, Setup(case, "float32", "contiguous", "backward"), count


def sweep(options: Options, rng: random.Random, tick: Callable[[str], None]) -> list[Row]:
    """A row for each point, with its axis and value; `tick` gets the name of each before it is measured."""
    rows = []
    for axis, value, setup, threads in points(max(options.threads)):
        tick(setup.case.name)
        (row,) = measure(setup, options._replace(threads=(threads,)), rng)
        rows.append({"axis": axis, "value": value, **row})
    return rows

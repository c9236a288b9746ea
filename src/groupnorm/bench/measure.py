"""Timing: interleaved rounds in random order, medians."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import machine
from ..reference import to_float64
from ..spec import Array
from . import contestant, limit
from .contestant import Contestant, Contestants, Rival, Unable
from .operands import Operands, make
from .setups import Setup

# A sample is so many calls that it takes this long; shorter ones measure the clock.
SAMPLE_SECONDS = 2e-3
# A call that is shorter is made once before a sample: what the last contestant left in caches and pools is not its own.
WARM_SECONDS = 20e-3
FEWEST_SAMPLES = 3
# Of the largest value: what statistics rounded to bfloat16, or made again in float32, explain. A rival beyond it
# computes something else.
LARGEST_DIFFERENCE = 0.03
# Before a sample: the threads of the last contestant may wait for more work in a loop, and take a CPU meanwhile.
SETTLE_SECONDS = 5e-3

Row = dict[str, Any]


class Options(NamedTuple):
    """How long to measure."""

    rounds: int
    # Seconds for the samples of one contestant: slow ones have fewer.
    budget: float
    threads: tuple[int, ...]
    rivals: Mapping[str, Rival]


class _Timer:
    """One contestant under one policy and number of threads, and its samples in seconds a call."""

    def __init__(self, one: Contestant, options: Options) -> None:
        self._one = one
        one.enter()
        self.first = one.result(one.call())
        self._calls, seconds = 1, self._sample(1)
        while seconds * self._calls < SAMPLE_SECONDS:
            self._calls = max(self._calls + 1, math.ceil(SAMPLE_SECONDS / max(seconds, 1e-9)))
            seconds = self._sample(self._calls)
        self._warm = seconds < WARM_SECONDS
        affordable = int(options.budget / (seconds * self._calls))
        self._rounds = min(options.rounds, max(FEWEST_SAMPLES, affordable))
        self._samples: list[float] = []

    def _sample(self, calls: int) -> float:
        call = self._one.call
        started = time.perf_counter()
        for _ in itertools.repeat(None, calls):
            call()
        return (time.perf_counter() - started) / calls

    def run(self) -> None:
        """One more sample, while there may be."""
        if len(self._samples) < self._rounds:
            time.sleep(SETTLE_SECONDS)
            self._one.enter()
            if self._warm:
                self._one.call()
            self._samples.append(self._sample(self._calls))

    def figures(self) -> dict[str, float | int]:
        """Milliseconds a call: the median and the quartiles around it."""
        low, median, high = statistics.quantiles(self._samples, n=4, method="inclusive")
        return {
            "median": median * 1e3,
            "low": low * 1e3,
            "high": high * 1e3,
            "samples": len(self._samples),
            "calls": self._calls,
        }


def _difference(array: Array, truth: Array) -> float:
    """The largest difference in the first sample, relative to the largest value."""
    one, other = (to_float64(np.asarray(a[:1]).reshape(-1)) for a in (array, truth))
    off = float(np.abs(one - other).max(initial=0) / max(np.abs(other).max(initial=0), 1e-30))
    return math.inf if math.isnan(off) else off


def _row(setup: Setup, threads: int, caches: machine.Caches) -> Row:
    bound = limit.limit_of(setup, caches, threads)
    return {
        "case": setup.case.name,
        "shape": list(setup.case.shape),
        "num_groups": setup.case.num_groups,
        "dtype": setup.dtype,
        "layout": setup.layout,
        "operator": setup.operator,
        "threads": threads,
        "x_bytes": setup.x_bytes,
        "tensor_bytes": (setup.reads + 1) * setup.x_bytes,
        "channels_per_group": setup.channels_per_group,
        "limit": bound._asdict(),
        "ms": {},
        "difference": {},
        "left_out": {},
    }


def _prepare(operands: Operands, row: Row, options: Options) -> dict[tuple[str, str], _Timer]:
    """The timers of a row by name and policy, and what each rival's result is off by."""
    threads = row["threads"]
    timers: dict[tuple[str, str], _Timer] = {}

    def add(name: str, calls: Contestants) -> None:
        timers.update({(name, policy): _Timer(one, options) for policy, one in calls.items()})

    add("ours", contestant.ours(operands, threads))
    add("triad", contestant.triad(operands, threads))
    truth = timers["ours", "given"].first
    for name, rival in options.rivals.items():
        try:
            add(name, rival.prepare(operands, threads))
        except Unable as error:
            row["left_out"][name] = str(error)
            continue
        own = [key for key in timers if key[0] == name]
        difference = max(_difference(timers[key].first, truth) for key in own)
        if difference <= LARGEST_DIFFERENCE:
            row["difference"][name] = difference
        else:
            row["left_out"][name] = f"its result is off by {difference:.2g} of the largest value"
            for key in own:
                del timers[key]
    for timer in timers.values():
        timer.first = truth  # the rivals' results need not stay
    return timers


def measure(setup: Setup, options: Options, rng: random.Random, tick: Callable[[], None] = lambda: None) -> list[Row]:
    """A row for each number of threads, all measured in the same rounds; `tick` is called once a round."""
    operands, caches = make(setup), machine.caches()
    rows = [_row(setup, threads, caches) for threads in options.threads]
    timers = [_prepare(operands, row, options) for row in rows]
    for _ in range(options.rounds):
        # Threads in turn, not mixed: libraries start theirs again whenever the number changes.
        for at in rng.sample(range(len(rows)), len(rows)):
            order = list(timers[at].values())
            rng.shuffle(order)
            for timer in order:
                timer.run()
        tick()
    for row, own in zip(rows, timers, strict=True):
        for (name, policy), timer in own.items():
            row["ms"].setdefault(name, {})[policy] = timer.figures()
        triad = row["ms"].pop("triad")
        row["limit"]["triad"] = triad
        row["limit"]["ms"] = row["limit"]["factor"] * min(figures["median"] for figures in triad.values())
    return rows


def available(rivals: Mapping[str, Rival], names: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The versions of the rivals of these names that are installed, and why the others are not there."""
    versions, missing = {}, {}
    for name in names:
        try:
            versions[name] = rivals[name].version()
        except (ImportError, OSError) as error:
            missing[name] = str(error) or type(error).__name__
    return versions, missing

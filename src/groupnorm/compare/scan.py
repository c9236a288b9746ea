"""One pass over both sides in blocks: every sum, count and extreme that metrics and standards need.

Errors are in float64 of the stored values. Where got and golden are the same infinity, or both NaN, they agree; where
only one of them is finite, or both differ, the error is infinite, and the element is left out of sums.
"""

from __future__ import annotations

import heapq
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..reference import Float64
from ..spec import Array, dtype_name
from . import standards as st
from .source import Tensor

PIECE = 1 << 20  # elements read at a time
BLOCK = 1 << 15  # elements worked on at a time: the arrays of a block fit a core's cache
WORST = 64
BINS = 66  # of the ulp histogram: 0, 1, 2-3, 4-7, ..., and the last for what is not finite
_MAX_ROWS = 1 << 22
_UINT = {2: np.uint16, 4: np.uint32, 8: np.uint64}
_INT = {2: np.int16, 4: np.int32, 8: np.int64}


@dataclass
class Totals:
    """Sums over a piece or over everything; `merge` adds the next piece."""

    count: int = 0
    differing: int = 0
    nonfinite: int = 0  # elements where the two sides are not finite in the same way
    got_nonfinite: int = 0
    golden_nonfinite: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)
    histogram: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    worst: list[tuple[float, int, float, float]] = field(default_factory=list)

    def add(self, **sums: float) -> None:
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)

    def top(self, **maxima: float) -> None:
        for name, value in maxima.items():
            self.maxima[name] = max(self.maxima.get(name, 0.0), float(value))

    def merge(self, other: Totals) -> None:
        for name in ("count", "differing", "nonfinite", "got_nonfinite", "golden_nonfinite"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.add(**other.sums)
        self.top(**other.maxima)
        self.histogram += other.histogram
        self.worst = heapq.nlargest(WORST, self.worst + other.worst)


@dataclass
class Rows:
    """Error of each row (n, c): the largest and the sum of |error|, and elements outside the community tolerance."""

    length: int
    largest: Float64
    total: Float64
    bad: npt.NDArray[np.int64]


def ordinals(array: Array) -> npt.NDArray[np.int64]:
    """Whole numbers in the order of the values: neighbours differ by 1, and both zeros are 0."""
    size = array.dtype.itemsize
    signed = array.view(_INT[size]).astype(np.int64)
    flipped: npt.NDArray[np.int64] = np.where(signed < 0, -(signed & ((1 << (8 * size - 1)) - 1)), signed)
    return flipped


def to_float64(array: Array) -> Float64:
    """Exactly; bfloat16 by shifting bits, which is faster than its own conversion."""
    if dtype_name(array.dtype) == "bfloat16":
        wide = array.view(np.uint16).astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def scan(got: Tensor, golden: Tensor, threads: int | None = None) -> tuple[Totals, Rows | None]:
    """Everything that the standards and metrics ask for; rows where the shape has [N, C] of a sensible number.

    Pieces are the same for any number of threads and are merged in order, so the figures do not depend on it.
    """
    rows = _rows_of(golden.shape)
    short = rows is not None and rows.length < BLOCK
    step = PIECE // rows.length * rows.length if rows is not None and short else PIECE
    starts = range(0, golden.size, step)
    totals = Totals()
    workers = threads or min(8, len(os.sched_getaffinity(0)))

    def one(start: int) -> tuple[int, Totals, list[tuple[int, int, Float64, Float64, Any]]]:
        stop = min(start + step, golden.size)
        return start, *_piece(got.read(start, stop), golden.read(start, stop), start, rows)

    with np.errstate(all="ignore"), ThreadPoolExecutor(workers) as pool:
        # A window of pieces: one that waits to be merged holds figures, not data.
        for _start, piece, parts in pool.map(_quiet(one), starts):
            totals.merge(piece)
            if rows is not None:
                for first, last, largest, total, bad in parts:
                    np.maximum(rows.largest[first:last], largest, out=rows.largest[first:last])
                    rows.total[first:last] += total
                    rows.bad[first:last] += bad
    return totals, rows


def _quiet(call: Any) -> Any:
    """The floating-point warnings of NumPy are a setting of each thread."""

    def quiet(start: int) -> Any:
        with np.errstate(all="ignore"):
            return call(start)

    return quiet


def _rows_of(shape: tuple[int, ...]) -> Rows | None:
    if len(shape) < 2 or shape[0] * shape[1] > _MAX_ROWS:
        return None
    count = shape[0] * shape[1]
    return Rows(math.prod(shape[2:]), np.zeros(count), np.zeros(count), np.zeros(count, np.int64))


def _piece(got: Array, golden: Array, start: int, rows: Rows | None) -> tuple[Totals, list[Any]]:
    totals, parts = Totals(), []
    block = BLOCK
    if rows is not None and rows.length < BLOCK:
        block = BLOCK // rows.length * rows.length
    for low in range(0, golden.size, block):
        a, g = got[low : low + block], golden[low : low + block]
        error, bad = _block(totals, a, g, start + low)
        if rows is None:
            continue
        first = (start + low) // rows.length
        if error is None:
            continue
        if rows.length < BLOCK:
            shaped = error.reshape(-1, rows.length)
            parts.append(
                (
                    first,
                    first + len(shaped),
                    shaped.max(1),
                    np.where(np.isfinite(shaped), shaped, 0).sum(1),
                    bad.reshape(shaped.shape).sum(1),
                )
            )
        else:
            _split_rows(parts, error, bad, start + low, rows.length)
    return totals, parts


def _split_rows(parts: list[Any], error: Float64, bad: Any, start: int, length: int) -> None:
    """A block of long rows: where it crosses from one to the next."""
    low = 0
    while low < error.size:
        row = (start + low) // length
        high = min(error.size, (row + 1) * length - start)
        part = error[low:high]
        finite = np.where(np.isfinite(part), part, 0)
        parts.append((row, row + 1, part.max(), finite.sum(), np.count_nonzero(bad[low:high])))
        low = high


def _block(totals: Totals, got: Array, golden: Array, start: int) -> tuple[Float64 | None, Any]:
    """Adds a block; its |error| and what is outside the community tolerance, or None where all bits agree."""
    dtype = dtype_name(golden.dtype)
    a, g = to_float64(got), to_float64(golden)
    totals.count += g.size
    gg = float(np.dot(g, g))
    uint = _UINT[golden.dtype.itemsize]
    differ = got.view(uint) != golden.view(uint)
    differing = int(np.count_nonzero(differ))
    if differing == 0 and math.isfinite(gg):
        totals.add(golden_square=gg, got_square=gg, product=gg)
        totals.histogram[0] += g.size
        return None, None
    ulp = np.abs(ordinals(got) - ordinals(golden)).astype(np.float64)
    error = np.abs(a - g)
    if not math.isfinite(gg) or not math.isfinite(float(np.dot(a, a))):
        a, g, error, ulp = _settle(totals, a, g, error, ulp)
        gg = float(np.dot(g, g))
    totals.differing += differing
    size = np.abs(g)
    finite = error[np.isfinite(error)] if totals.nonfinite else error
    atol, rtol, cap = st.COMMUNITY[dtype]
    tolerance = atol + rtol * size
    bad = error > tolerance
    biggest = float(error.max())
    totals.add(
        golden_square=gg,
        got_square=float(np.dot(a, a)),
        product=float(np.dot(a, g)),
        absolute=float(finite.sum()),
        square=float(np.dot(finite, finite)),
        community_bad=_count(bad),
        per_mille_bad=_count(error > st.PER_MILLE[dtype] * size),
    )
    relative = error / (size + st.MERE_EPS)
    totals.add(mere=relative.sum())
    nonzero = size > np.finfo(float).eps
    vendor = np.where(nonzero, error / size, 0)
    totals.add(relative=vendor.sum(), nonzero=_count(nonzero))
    totals.top(absolute=biggest, mare=relative.max(), relative=vendor.max(), ulp=ulp.max())
    if biggest > cap:
        totals.add(over_cap=_count((error > cap) & (ulp > st.COMMUNITY_ULP)))
    _msopst(totals, a, size, error)
    bins = np.frexp(np.minimum(ulp, 2.0**63))[1]
    totals.histogram += np.bincount(np.where(np.isinf(ulp), BINS - 1, bins), minlength=BINS)
    _keep_worst(totals, a, g, error / tolerance, start)
    return error, bad


def _count(mask: Any) -> int:
    return int(np.count_nonzero(mask))


def _settle(totals: Totals, a: Float64, g: Float64, error: Float64, ulp: Float64) -> tuple[Float64, ...]:
    """What is not finite: agreeing elements have no error, others an infinite one; neither is in sums of squares."""
    a_bad, g_bad = ~np.isfinite(a), ~np.isfinite(g)
    same = (np.isnan(a) & np.isnan(g)) | (a == g)
    wrong = (a_bad | g_bad) & ~same
    totals.nonfinite += int(np.count_nonzero(wrong))
    totals.got_nonfinite += int(np.count_nonzero(a_bad))
    totals.golden_nonfinite += int(np.count_nonzero(g_bad))
    either = a_bad | g_bad
    error = np.where(wrong, np.inf, np.where(same, 0, error))
    ulp = np.where(wrong, np.inf, np.where(same, 0, ulp))
    return np.where(either, 0, a), np.where(either, 0, g), error, ulp


def _msopst(totals: Totals, a: Float64, size: Float64, error: Float64) -> None:
    """Absolute below the threshold, relative to the larger side above it, as result_comparer.py has it."""
    if float(error.max()) < st.MSOPST_DIFF:
        totals.top(msopst=float(error.max()))
        return
    floor = 2.0**-14 / st.MSOPST_DIFF
    difference = np.where(
        error < st.MSOPST_DIFF, error, error / (np.maximum(np.maximum(np.abs(a), size), floor) + 1e-9)
    )
    totals.add(msopst_bad=_count(difference > st.MSOPST_DIFF))
    totals.top(msopst=difference.max())


def _keep_worst(totals: Totals, a: Float64, g: Float64, ratio: Float64, start: int) -> None:
    """The elements that are furthest outside the community tolerance."""
    least = totals.worst[-1][0] if len(totals.worst) >= WORST else 0.0
    if float(ratio.max()) <= least:
        return
    candidates = np.flatnonzero(ratio > least)
    if candidates.size > WORST:
        candidates = candidates[np.argpartition(ratio[candidates], -WORST)[-WORST:]]
    found = [(float(ratio[i]), start + int(i), float(a[i]), float(g[i])) for i in candidates]
    totals.worst = heapq.nlargest(WORST, totals.worst + found)

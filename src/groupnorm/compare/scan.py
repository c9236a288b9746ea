"""One pass over both sides in blocks: every sum, count and extreme that metrics and standards need.

Values are exact, errors off by a rounding of float32 for 16-bit data and of float64 otherwise. Where got and golden are
the same infinity, or both NaN, they agree; where only one of them is finite, or both differ, the error is infinite.
Neither is in the sums and maxima of the metrics, which are those of finite pairs; both are counted.
"""

from __future__ import annotations

import heapq
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..reference import Float64
from ..spec import Array, dtype_name
from . import standards as st
from .source import Tensor, default_workers

PIECE = 1 << 20  # elements read at a time
BLOCK = 1 << 17  # worked on at a time: with fewer, threads wait for the interpreter, with more, for memory
WORST = 64
HUGE = 2.0**-512  # squares of float64 are taken of values times this where they overflow
BINS = 66  # of the ulp histogram: 0, 1, 2-3, 4-7, ..., and the last for what is not finite
_MAX_ROWS = 1 << 22
_UINT = {2: np.uint16, 4: np.uint32, 8: np.uint64}
_INT = {2: np.int16, 4: np.int32, 8: np.int64}


@dataclass
class Totals:
    """Sums over a piece or over everything; `merge` adds the next piece."""

    count: int = 0
    differing: int = 0
    nonfinite: int = 0  # elements where a side is not finite, and the other not in the same way
    agreeing: int = 0  # elements that are the same infinity or NaN on both sides
    got_nonfinite: int = 0
    golden_nonfinite: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)
    histogram: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    worst: list[tuple[float, int]] = field(default_factory=list)

    @property
    def finite(self) -> int:
        """Elements that are finite on both sides."""
        return self.count - self.nonfinite - self.agreeing

    def add(self, **sums: float) -> None:
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)

    def add_squares(self, scale: float, **sums: float) -> None:
        """Sums of products of two numbers times `scale`, which is `HUGE` where float64 would overflow."""
        self.add(**(sums if scale == 1 else {f"huge_{name}": value for name, value in sums.items()}))

    def top(self, **maxima: float) -> None:
        for name, value in maxima.items():
            self.maxima[name] = max(self.maxima.get(name, 0.0), float(value))

    def merge(self, other: Totals) -> None:
        for name in ("count", "differing", "nonfinite", "agreeing", "got_nonfinite", "golden_nonfinite"):
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


def ulps_apart(ours: Array, theirs: Array) -> npt.NDArray[Any]:
    """How many steps from one number of the dtype to the next lie between both; the zeros are the same number."""
    a, b = _ordinals(ours), _ordinals(theirs)
    # The larger less the smaller is in the range of the unsigned integer, where the signed difference wraps.
    apart: npt.NDArray[Any] = (np.maximum(a, b) - np.minimum(a, b)).view(_UINT[ours.dtype.itemsize])
    return apart


def _ordinals(array: Array) -> npt.NDArray[Any]:
    """Whole numbers in the order of the values: neighbours differ by 1, and both zeros are 0."""
    signed: npt.NDArray[Any] = array.view(_INT[array.dtype.itemsize])
    sign = signed >> (8 * array.dtype.itemsize - 1)  # -1 or 0
    magnitude = signed & np.iinfo(signed.dtype).max
    ordinals: npt.NDArray[Any] = (magnitude ^ sign) - sign
    return ordinals


def to_float64(array: Array) -> Float64:
    """Exactly."""
    return _widened(array, np.float64)


def _widened(array: Array, work: Any) -> npt.NDArray[Any]:
    """Exactly; bfloat16 by shifting bits, which is faster than its own conversion."""
    if dtype_name(array.dtype) == "bfloat16":
        wide = array.view(np.uint16).astype(np.uint32)
        wide <<= 16
        found: npt.NDArray[Any] = wide.view(np.float32).astype(work, copy=False)
        return found
    return array.astype(work, copy=False)


def scan(got: Tensor, golden: Tensor, threads: int | None = None) -> tuple[Totals, Rows | None]:
    """Everything that the standards and metrics ask for; rows where the shape has [N, C] of a sensible number.

    Pieces are the same for any number of threads and are merged in order, so the figures do not depend on it.
    """
    if golden.size == 0:
        return Totals(), None
    rows = _rows_of(golden.shape)
    short = rows is not None and rows.length < BLOCK
    step = PIECE // rows.length * rows.length if rows is not None and short else PIECE
    starts = range(0, golden.size, step)
    totals = Totals()
    workers = threads or default_workers()

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
    totals = Totals()
    parts: list[Any] = []
    block = BLOCK
    if rows is not None and rows.length < BLOCK:
        block = BLOCK // rows.length * rows.length
    for low in range(0, golden.size, block):
        a, g = got[low : low + block], golden[low : low + block]
        found = _block(totals, a, g, start + low)
        if rows is None or found is None:
            continue
        add = _add_short if rows.length < BLOCK else _add_long
        add(parts, *found, start + low, g.size, rows.length)
    return totals, parts


def _add_short(parts: list[Any], differ: Array, error: Array, bad: Array, start: int, count: int, length: int) -> None:
    """Rows shorter than a block, which holds whole ones."""
    every, outside = np.zeros(count, error.dtype), np.zeros(count, bool)
    every[differ], outside[differ] = error, bad
    shaped = every.reshape(-1, length)
    finite = np.where(np.isfinite(shaped), shaped, 0)
    first = start // length
    parts.append((first, first + len(shaped), shaped.max(1), finite.sum(1), outside.reshape(shaped.shape).sum(1)))


def _add_long(parts: list[Any], differ: Array, error: Array, bad: Array, start: int, count: int, length: int) -> None:
    """Rows longer than a block, which holds pieces of one or of two."""
    for row in range(start // length, (start + count - 1) // length + 1):
        low, high = np.searchsorted(differ, (row * length - start, (row + 1) * length - start))
        part = error[low:high]
        if part.size:
            finite = part[np.isfinite(part)]
            parts.append((row, row + 1, part.max(), finite.sum(), _count(bad[low:high])))


def _block(totals: Totals, got: Array, golden: Array, start: int) -> tuple[Array, Array, Array] | None:
    """Adds a block; None where all bits agree, else which elements differ, their |error|, which are out of tolerance.

    Only elements whose bits differ are looked at more closely. 16-bit data is worked on in float32, twice as fast,
    unless squares leave its range. Sums over a block are pairwise; BLAS would start threads of its own.
    """
    totals.count += golden.size
    uint = _UINT[golden.dtype.itemsize]
    differ = np.flatnonzero(got.view(uint) != golden.view(uint))
    for work in (np.float32, np.float64) if golden.dtype.itemsize == 2 else (np.float64,):
        g = _widened(golden, work)
        square = float((g * g).sum())
        if math.isfinite(square) and square > 1e-20 * g.size:
            break
    scale, same_bits = 1.0, 0
    if not math.isfinite(square):
        odd = ~np.isfinite(g)
        same_bits = _count(odd) - _count(odd[differ])
        totals.golden_nonfinite += _count(odd)
        square, scale = _square(np.where(odd, 0, g))
    totals.differing += differ.size
    totals.add_squares(scale, golden_square=square, got_square=square, product=square)
    if differ.size * 2 > g.size:  # it costs less to look at all than to pick
        differ = np.arange(g.size)
    else:
        totals.histogram[0] += g.size - differ.size
        totals.got_nonfinite += same_bits
        totals.agreeing += same_bits
        got, golden, g = got[differ], golden[differ], g[differ]
    if differ.size == 0:
        return None
    a = _widened(got, work)
    ulp = ulps_apart(got, golden)
    error = np.abs(a - g)
    if not math.isfinite(float(error.max())):
        a, g, error, ulp = _settle(totals, a, g, error, ulp)
    ratio = _add_block(totals, dtype_name(golden.dtype), a, g, error, ulp)
    _keep_worst(totals, ratio, differ + start)
    return differ, error, ratio > 1


def _products(off: Array, golden: Array) -> tuple[float, float]:
    """Of the errors with themselves, and with golden."""
    return float(np.square(off).sum()), float((off * golden).sum())


def _square(values: npt.NDArray[Any]) -> tuple[float, float]:
    """The sum of squares of what is finite, and the scale of the values that it is of."""
    square = float(np.square(values).sum())
    return (square, 1.0) if math.isfinite(square) else (float(np.square(values * HUGE).sum()), HUGE)


def _add_block(
    totals: Totals,
    dtype: str,
    a: npt.NDArray[Any],
    g: npt.NDArray[Any],
    error: npt.NDArray[Any],
    ulp: npt.NDArray[Any],
) -> npt.NDArray[Any]:
    """Adds the elements that differ; |error| as a share of the community tolerance."""
    size = np.abs(g)
    atol, rtol, cap = st.COMMUNITY[dtype]
    ratio: npt.NDArray[Any] = error / (atol + rtol * size)
    biggest = float(error.max())
    outside = _count(ratio > 1) if float(ratio.max()) > 1 else 0
    totals.add(community_bad=outside, per_mille_bad=_count(error > st.PER_MILLE[dtype] * size))
    totals.top(ulp=ulp.max())
    if biggest > cap:
        totals.add(over_cap=_count((error > cap) & (ulp > st.COMMUNITY_ULP)))
    _msopst(totals, a, size, error)
    _add_histogram(totals, ulp)
    if not math.isfinite(biggest):
        finite = np.isfinite(error)
        a, g, size, error = (values[finite] for values in (a, g, size, error))
    _add_metrics(totals, a, g, size, error)
    return ratio


def _add_metrics(totals: Totals, a: Array, g: Array, size: Array, error: Array) -> None:
    """Sums and maxima of pairs that are finite; the squares of what agrees are there already."""
    if error.size == 0:
        return
    if float(error.max()) > 1e9:  # where squares and quotients leave the range of float32
        a, g, size, error = (values.astype(np.float64, copy=False) for values in (a, g, size, error))
    relative = error / (size + a.dtype.type(st.MERE_EPS))
    # Where golden is as good as 0, msaccucmp leaves the element out.
    eps = np.finfo(float).eps
    vendor = error / (size if float(size.min()) > eps else np.where(size > eps, size, np.inf))
    totals.add(absolute=float(error.sum()), mere=float(relative.sum()), relative=float(vendor.sum()))
    totals.top(absolute=error.max(), mare=relative.max(), relative=vendor.max())
    square, product, scale = *_products(a - g, g), 1.0
    if not (math.isfinite(square) and math.isfinite(product)):
        square, product, scale = *_products(a * HUGE - g * HUGE, g * HUGE), HUGE
    got_square = square + 2 * product  # what the square of got is more than that of golden
    totals.add_squares(scale, square=square, got_square=got_square, product=product)


def _add_histogram(totals: Totals, ulp: npt.NDArray[Any]) -> None:
    """Counts by powers of two: one comparison for each that occurs, most often two or three."""
    above, bound = ulp.size, 1
    most = float(ulp.max())
    for i in range(BINS - 1):
        here = (_count(ulp >= bound) if i < BINS - 2 else _count(np.isinf(ulp))) if bound <= most else 0
        totals.histogram[i] += above - here
        above, bound = here, bound * 2
        if above == 0:
            return
    totals.histogram[BINS - 1] += above


def _count(mask: Any) -> int:
    return int(np.count_nonzero(mask))


def _settle(totals: Totals, a: Array, g: Array, error: Array, ulp: Array) -> tuple[Array, ...]:
    """What is not finite: agreeing elements have no error, others an infinite one, and values 0 in sums.

    A difference of two finite numbers is one, at most the largest.
    """
    a_bad, g_bad = ~np.isfinite(a), ~np.isfinite(g)
    same = (np.isnan(a) & np.isnan(g)) | (a == g)
    wrong = (a_bad | g_bad) & ~same
    totals.nonfinite += int(np.count_nonzero(wrong))
    totals.got_nonfinite += int(np.count_nonzero(a_bad))
    either = a_bad | g_bad
    totals.agreeing += _count(either & same)
    error = np.where(wrong, np.inf, np.where(same, 0, np.minimum(error, np.finfo(error.dtype).max)))
    ulp = np.where(wrong, np.inf, np.where(same, 0, ulp))
    return np.where(either, 0, a), np.where(either, 0, g), error, ulp


def _msopst(totals: Totals, a: Array, size: Array, error: Array) -> None:
    """Absolute below the threshold, relative to the larger side above it, as result_comparer.py has it."""
    if float(error.max()) < st.MSOPST_DIFF:
        totals.top(msopst=float(error.max()))
        return
    large = np.flatnonzero(error >= st.MSOPST_DIFF)
    difference = error[large] / (
        np.maximum(np.maximum(np.abs(a[large]), size[large]), 2.0**-14 / st.MSOPST_DIFF) + 1e-9
    )
    totals.add(msopst_bad=_count(difference > st.MSOPST_DIFF))
    totals.top(msopst=max(float(difference.max()), float(np.where(error < st.MSOPST_DIFF, error, 0).max())))


def _keep_worst(totals: Totals, ratio: npt.NDArray[Any], places: npt.NDArray[Any]) -> None:
    """The elements that are furthest outside the community tolerance."""
    least = totals.worst[-1][0] if len(totals.worst) >= WORST else 0.0
    if float(ratio.max()) <= least:
        return
    candidates = np.flatnonzero(ratio > least)
    if candidates.size > WORST:
        candidates = candidates[np.argpartition(ratio[candidates], -WORST)[-WORST:]]
    found = [(float(ratio[i]), int(places[i])) for i in candidates]
    totals.worst = heapq.nlargest(WORST, totals.worst + found)

"""Guesses at the cause of an error: each a known pattern, named only on strong evidence."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .. import reference
from ..files import DTYPES
from ..golden import ascend910b
from ..golden.request import PRINTED
from ..golden.store import Stored
from ..reference import Float64
from ..spec import Array, dtype_name
from ..tolerance import LARGEST_EXPONENT, SMALLEST
from ..tolerance import ulp as ulp_of
from . import scan
from .source import Pair, read_inputs

_MOST = 1 << 22  # elements looked at: whole samples, the worst first
_WINDOW = 1 << 18  # of a sample that has more
_RUN = 32  # elements of an unwritten stretch: one block of 32 bytes of 16-bit data has 16
_CLOSER = 0.2  # of the error that has to be left when a candidate is the explanation
_TIES = 4
_FLUSHED = 4  # elements, of two ulp or more: one ulp is a rounding


class Cause(NamedTuple):
    """A guess: what it is, and what it rests on."""

    name: str
    evidence: str


class _Part(NamedTuple):
    """The samples that are looked at."""

    got: Float64  # [S, C, *]
    golden: Float64
    got_stored: Array
    dtype: np.dtype[np.generic]
    case: Stored | None
    inputs: dict[str, Array]
    first: int  # the flat index of the first element


@np.errstate(all="ignore")
def guess(pair: Pair, totals: scan.Totals, rows: scan.Rows | None) -> list[Cause]:
    """The causes whose pattern is there; empty where the two sides agree but for roundings."""
    if totals.differing == 0 or pair.output != "dx" or not pair.golden.shape:
        return []
    part = _take(pair, totals, rows)
    found = [overflow(part), saturated(part), flushed(part), unwritten(part), layout(part), ties(part)]
    if part.case is not None:
        found += [formula(part), statistics(part), shifted(part)]
    return [cause for cause in found if cause is not None]


def _take(pair: Pair, totals: scan.Totals, rows: scan.Rows | None) -> _Part:
    shape = pair.golden.shape
    of_sample = max(1, pair.golden.size // max(1, shape[0]))
    if of_sample > _MOST:  # a stretch of a sample, flat: enough for what shows in the elements themselves
        worst = totals.worst[0][1] if totals.worst else 0
        low = min(max(0, worst - _WINDOW // 2), pair.golden.size - _WINDOW)
        got, golden = (side.read(low, low + _WINDOW) for side in (pair.got, pair.golden))
        return _Part(scan.to_float64(got), scan.to_float64(golden), got, pair.golden.dtype, None, {}, low)
    count = min(shape[0], max(1, _MOST // of_sample))
    # Neighbouring samples around the worst one: shifts and stretches show only in what lies together.
    worst = int(rows.largest.reshape(shape[0], -1).max(1).argmax()) if rows is not None else 0
    first = min(max(0, worst - count // 2), shape[0] - count)
    low, high = first * of_sample, (first + count) * of_sample
    got, golden = (side.read(low, high).reshape(count, *shape[1:]) for side in (pair.got, pair.golden))
    inputs: dict[str, Array] = {}
    if pair.case is not None:
        for name, tensor in read_inputs(pair.case).items():
            if name in ("x", "dy") or (name == "gamma" and pair.case.request.op == PRINTED):
                inputs[name] = tensor.read(low, high).reshape(count, *shape[1:])
            else:
                inputs[name] = tensor.whole()
                if name != "gamma":
                    inputs[name] = inputs[name][first : first + count]
    return _Part(scan.to_float64(got), scan.to_float64(golden), got, pair.golden.dtype, pair.case, inputs, low)


def _distance(a: Float64, b: Float64) -> float:
    """Root of the mean square over what is finite on both sides; infinite where too little is."""
    finite = np.isfinite(a) & np.isfinite(b)
    if np.count_nonzero(finite) * 2 < a.size:
        return np.inf
    difference = np.where(finite, a, 0) - np.where(finite, b, 0)
    scale = np.abs(difference).max()
    return float(scale * np.sqrt(np.mean(np.square(difference / scale)))) if scale > 0 else 0.0


def _explains(part: _Part, candidate: Float64) -> bool:
    """The candidate is far closer to got than golden is, and golden is further than roundings would put it."""
    off = _distance(part.got, part.golden)
    finite = np.abs(part.golden[np.isfinite(part.golden)])
    if finite.size == 0:
        return False
    rounding = float(np.sqrt(np.mean(np.square(ulp_of(finite, part.dtype)))))
    # With less than half of it finite, nothing can be told.
    return np.isfinite(off) and off > 2 * rounding and _distance(part.got, candidate) < _CLOSER * off


def _printed(inputs: dict[str, Array]) -> Float64:
    return reference.group_normalization_grad(*(inputs[n] for n in ("x", "dy", "gamma", "mean", "rstd")))


def _dx(part: _Part, **changed: Array) -> Float64:
    """The float64 dx of the case's own operator, with some inputs changed."""
    assert part.case is not None
    inputs = {**part.inputs, **changed}
    if part.case.request.op == PRINTED:
        return _printed(inputs)
    grads = reference.group_norm_backward(*(inputs[n] for n in ("dy", "x", "mean", "rstd", "gamma")))
    assert grads.dx is not None
    return grads.dx


def formula(part: _Part) -> Cause | None:
    """Operator A where B was meant, or the other way round."""
    assert part.case is not None
    x, mean = part.inputs["x"], part.inputs["mean"]
    if part.case.request.op == PRINTED:
        x_, dy, gamma = (scan.to_float64(part.inputs[n]).reshape(*x.shape[:2], -1) for n in ("x", "dy", "gamma"))
        rstd = scan.to_float64(part.inputs["rstd"])[:, :, None]
        xhat = (x_ - scan.to_float64(mean)[:, :, None]) * rstd
        dxhat = dy * gamma
        s1, s2 = dxhat.mean(2, keepdims=True), (dxhat * xhat).mean(2, keepdims=True)
        other, name = (rstd * (dxhat - s1 - xhat * s2)).reshape(x.shape), "the true gradient (group_norm_backward)"
    else:
        n, c = x.shape[:2]
        groups = mean.shape[1]
        shape = (n, groups, c // groups, *x.shape[2:])
        gamma = part.inputs["gamma"].reshape(1, groups, c // groups, *(1,) * (x.ndim - 2))
        regrouped = {
            **part.inputs,
            "x": x.reshape(shape),
            "dy": part.inputs["dy"].reshape(shape),
            "gamma": np.broadcast_to(gamma, shape),
        }
        other, name = _printed(regrouped).reshape(x.shape), "the printed formula (group_normalization_grad)"
    if not _explains(part, other):
        return None
    return Cause("wrong formula", f"got is {name}, golden is not: gamma stands elsewhere")


def statistics(part: _Part) -> Cause | None:
    """mean and rstd rounded to a narrower dtype than they were given in."""
    own = part.inputs["mean"].dtype
    for name in ("float16", "bfloat16"):
        narrow = DTYPES[name]
        if dtype_name(own) == name or own.itemsize <= narrow.itemsize:
            continue
        rounded = {n: part.inputs[n].astype(narrow).astype(own) for n in ("mean", "rstd")}
        if _explains(part, _dx(part, **rounded)):
            return Cause("statistics in low precision", f"got is what mean and rstd rounded to {name} give")
    return None


def shifted(part: _Part) -> Cause | None:
    """mean and rstd of a neighbouring group."""
    mean, rstd = part.inputs["mean"], part.inputs["rstd"]
    if mean.size < 2:
        return None
    for step, word in ((1, "before"), (-1, "after")):
        moved = {n: np.roll(s.reshape(-1), step).reshape(s.shape) for n, s in (("mean", mean), ("rstd", rstd))}
        if _explains(part, _dx(part, **moved)):
            return Cause("shifted group index", f"got is what mean and rstd of the group {word} give")
    return None


def layout(part: _Part) -> Cause | None:
    """Channels-last memory read as contiguous, or the other way round, in the output or in the inputs."""
    if part.golden.ndim < 3 or part.golden.shape[1] == 1 or np.prod(part.golden.shape[2:]) == 1:
        return None

    def as_last(array: Array) -> Array:  # the values in channels-last order, taken for contiguous
        return np.ascontiguousarray(np.moveaxis(array, 1, -1)).reshape(array.shape)

    def as_first(array: Array) -> Array:
        n, c, *rest = array.shape
        return np.ascontiguousarray(np.moveaxis(array.reshape(n, *rest, c), -1, 1))

    for view, word in ((as_last, "channels-last"), (as_first, "contiguous where channels-last was meant")):
        if _explains(part, view(part.golden)):
            return Cause("layout", f"got holds the golden values in order of memory {word}")
        if part.case is not None and part.case.request.op != PRINTED:
            changed = {n: view(part.inputs[n]) for n in ("x", "dy")}
            if _explains(part, _dx(part, **changed)):
                return Cause("layout", f"got is what x and dy read in the other layout give ({word})")
    return None


def overflow(part: _Part) -> Cause | None:
    """Inf or NaN where golden is finite, because a number or an intermediate leaves the dtype."""
    wrong = ~np.isfinite(part.got) & np.isfinite(part.golden)
    count = int(np.count_nonzero(wrong))
    if count == 0:
        return None
    infinite = int(np.count_nonzero(np.isinf(part.got) & wrong))
    if infinite == 0:
        return None
    return Cause("overflow to Inf", f"{infinite} elements are Inf where golden is finite")


def _saturated(part: _Part) -> npt.NDArray[np.bool_]:
    """The largest number in got where golden is the infinity of the same sign."""
    largest = ascend910b.largest_of(part.dtype)
    found: npt.NDArray[np.bool_] = np.isinf(part.golden) & (part.got == np.copysign(largest, part.golden))
    return found


def saturated(part: _Part) -> Cause | None:
    """A last cast that stops at the largest number; every infinity of golden is gone."""
    count = int(np.count_nonzero(_saturated(part)))
    if count == 0 or count < np.count_nonzero(np.isinf(part.golden)):
        return None
    largest, name = ascend910b.largest_of(part.dtype), dtype_name(part.dtype)
    return Cause("saturation", f"{count} elements are {largest:g}, the largest {name}, where golden is Inf")


def _flushed(part: _Part) -> npt.NDArray[np.bool_]:
    """Zero in got where golden is subnormal."""
    found: npt.NDArray[np.bool_] = (part.got == 0) & (part.golden != 0) & _subnormal(part.golden, part.dtype)
    return found


def _subnormal(values: Float64, dtype: np.dtype[np.generic]) -> npt.NDArray[np.bool_]:
    smallest_normal = np.ldexp(1.0, 1 - LARGEST_EXPONENT[dtype_name(dtype)])
    found: npt.NDArray[np.bool_] = (values != 0) & (np.abs(values) < smallest_normal)
    return found


def flushed(part: _Part) -> Cause | None:
    """Subnormal results, or operands, taken for zero: no subnormal is left in got, and golden has some."""
    gone = _flushed(part)
    clear = gone & (np.abs(part.golden) >= 2 * SMALLEST[dtype_name(part.dtype)])
    if np.count_nonzero(clear) < _FLUSHED or _subnormal(part.got, part.dtype).any():
        return None
    count = int(np.count_nonzero(gone))
    return Cause(
        "subnormals flushed to zero", f"{count} elements are 0 where golden is subnormal, and got has none that is"
    )


def unwritten(part: _Part) -> Cause | None:
    """A stretch of one repeated value, as memory holds that nobody wrote, with the errors in it alone."""
    bits = part.got_stored.reshape(-1).view({2: np.uint16, 4: np.uint32, 8: np.uint64}[part.dtype.itemsize])
    golden = part.golden.reshape(-1)
    got = part.got.reshape(-1)
    edges = np.flatnonzero(np.diff(bits) != 0) + 1
    starts, stops = np.concatenate([[0], edges]), np.concatenate([edges, [bits.size]])
    differs = ~((got == golden) | (np.isnan(got) & np.isnan(golden)))
    differs &= ~(_flushed(part) | _saturated(part)).reshape(-1)  # which makes stretches of one value too
    sums = np.concatenate([[0], np.cumsum(differs)])
    for i in np.flatnonzero(stops - starts >= _RUN):
        low, high = int(starts[i]), int(stops[i])
        if sums[high] - sums[low] < 0.9 * (high - low) or np.ptp(golden[low:high]) == 0:
            continue
        error = np.abs(got - golden)
        outside = np.concatenate([error[:low], error[high:]])
        inside = float(np.median(np.where(np.isnan(error[low:high]), np.inf, error[low:high])))
        if outside.size == 0 or inside > 8 * float(np.median(outside)):
            value = float(got[low])
            return Cause("unwritten tile", f"{high - low} elements from {part.first + low} on are all {value:g}")
    return None


def ties(part: _Part) -> Cause | None:
    """16-bit results that differ where the exact value lies half-way, always in the same direction."""
    if part.dtype.itemsize != 2 or part.case is None:
        return None
    differs = (part.got != part.golden) & np.isfinite(part.got) & np.isfinite(part.golden)
    count = int(np.count_nonzero(differs))
    if count < _TIES:
        return None
    got, golden = part.got[differs], part.golden[differs]
    middle = (got + golden) / 2
    exact = [_dx(part)[differs]]
    if part.case.request.op == PRINTED:
        model = ascend910b.before_cast(*(part.inputs[n] for n in ("x", "dy", "gamma", "mean", "rstd")))
        exact.append(model.astype(np.float64)[differs])
    if not any((np.abs(value - middle) <= 2.0**-45 * np.abs(middle)).all() for value in exact):
        return None
    away = np.abs(got) > np.abs(golden)
    if away.all():
        return Cause("ties", f"{count} elements lie half-way: got rounds them away from zero, golden to even")
    if not away.any():
        return Cause("ties", f"{count} elements lie half-way: got rounds them to even, golden away from zero")
    return None

"""The inputs of a request: families of data, drawn through our own generator and rounded once.

Nothing here calls a function whose last bit differs between machines: no log, no exp, no sine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import cases
from ..cases import uniform
from ..files import DTYPES
from ..reference import Float64, group_norm
from ..spec import Array
from ..tolerance import LARGEST_EXPONENT, SMALLEST
from .request import INPUTS, PRINTED, Request

Drawn = tuple[Float64, Float64, Float64]
# The values of the vendor's unit test (gen_data.py of the operator).
_POOL = np.array([-2.0, -0.5, 0.0, 0.5, 1.0, 2.0])
_BLOCK = 1 << 22  # elements of groups that are worked on together


def normal(shape: tuple[int, ...], seed: int) -> Float64:
    """Mean 0, variance 1, within 6: the sum of twelve uniforms, which is normal but for its far tails."""
    drawn = np.zeros(shape)
    for i in range(12):
        drawn += uniform(shape, seed + i)
    return drawn / 2  # each uniform on [-1, 1) has variance 1/3


def _pick(seed: int, stream: int, low: float, high: float) -> float:
    return float(low + (high - low) * (uniform((1,), 1000003 * (stream + 1) + seed)[0] + 1) / 2)


def _community_uniform(shape: tuple[int, ...], seed: int) -> Float64:
    return 5 * uniform(shape, seed)


def _community_normal(shape: tuple[int, ...], seed: int) -> Float64:
    return _pick(seed, 1, -5, 5) + _pick(seed, 2, 0.1, 2) * normal(shape, seed)


def _community(shape: tuple[int, ...], seed: int) -> Float64:
    """One or the other, evenly over the seeds."""
    return (_community_uniform if _pick(seed, 3, 0, 1) < 0.5 else _community_normal)(shape, seed)


def _three(draw: Callable[[tuple[int, ...], int], Float64]) -> Callable[[Request], Drawn]:
    def family(request: Request) -> Drawn:
        shape, seed = request.case.shape, 64 * request.seed
        return draw(shape, seed), draw(shape, seed + 16), draw(shape[1:2], seed + 32)

    return family


def _shared(name: str) -> Callable[[Request], Drawn]:
    """A family of cases.py."""
    return lambda request: cases.FAMILIES[name](request.case.shape, request.seed)


def _constant(request: Request) -> Drawn:
    """Every group holds one value: the variance is 0, rstd as large as it gets."""
    x, dy, gamma = cases.FAMILIES["centred"](request.case.shape, request.seed)
    n, c = x.shape[:2]
    groups = request.num_groups
    of_group = np.repeat(uniform((n, groups), request.seed + 7), c // groups, axis=1)
    return np.broadcast_to(of_group.reshape(n, c, *(1,) * (x.ndim - 2)), x.shape).copy(), dy, gamma


def _huge(request: Request) -> Drawn:
    """x and dy within 16 of the largest number: M * dy overflows in the dtype, the gradient does not."""
    x, dy, gamma = cases.FAMILIES["centred"](request.case.shape, request.seed)
    scale = math.ldexp(1.0, LARGEST_EXPONENT[request.dtype] - 4)
    return x * scale, dy * scale, gamma


def _tiny(request: Request) -> Drawn:
    """dy of some hundred times the smallest number: most of dx is subnormal."""
    x, dy, gamma = cases.FAMILIES["centred"](request.case.shape, request.seed)
    return x, dy * (SMALLEST[request.dtype] * 256), gamma


def _planted(values: tuple[float, ...]) -> Callable[[Request], Drawn]:
    """Values in dy that have to stay in their own (n, g)."""

    def family(request: Request) -> Drawn:
        x, dy, gamma = cases.FAMILIES["centred"](request.case.shape, request.seed)
        for i, value in enumerate(values):
            if dy.size:
                dy.reshape(-1)[int(_pick(request.seed, 10 + i, 0, dy.size)) % dy.size] = value
        return x, dy, gamma

    return family


def _ramp(request: Request) -> Drawn:
    """The document's example: x = (i % 128) / 128, dy = 0.5, gamma = 1, with mean 0 and rstd 1."""
    shape = request.case.shape
    x = (np.arange(math.prod(shape)) % 128 / 128.0).reshape(shape)
    return x, np.full(shape, 0.5), np.ones(shape[1])


def _from_pool(shape: tuple[int, ...], seed: int) -> Float64:
    found: Float64 = _POOL[np.minimum((uniform(shape, seed) + 1) * 3, 5).astype(np.int64)]
    return found


FAMILIES: dict[str, Callable[[Request], Drawn]] = {
    "community": _three(_community),
    "community_uniform": _three(_community_uniform),
    "community_normal": _three(_community_normal),
    **{name: _shared(name) for name in cases.FAMILIES},
    "constant": _constant,
    "huge": _huge,
    "tiny": _tiny,
    "nan_planted": _planted((math.nan,)),
    "inf_planted": _planted((math.inf, -math.inf)),
    "ramp": _ramp,
    "unit_test": _three(_from_pool),
}


def rounded(values: Float64, dtype: np.dtype[Any]) -> Array:
    """float64 rounded once to `dtype`, ties to even; every NaN the same bits."""
    with np.errstate(over="ignore", invalid="ignore"):
        result: Array = np.asarray(values).astype(dtype)
    return with_one_nan(result)


def with_one_nan(array: Array) -> Array:
    """The quiet positive NaN for every NaN: which one arithmetic makes differs between CPUs."""
    nan = np.isnan(array)
    if nan.any():
        bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[array.dtype.itemsize]
        quiet = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8 << 48}
        array.view(bits)[nan] = quiet[array.dtype.name]
    return array


def _statistics(request: Request, x: Array) -> tuple[Float64, Float64]:
    n, groups, seed = request.shape[0], request.num_groups, 64 * request.seed
    if request.family == "ramp":
        return np.zeros((n, groups)), np.ones((n, groups))
    if request.family == "unit_test":
        return _from_pool((n, groups), seed + 48), np.abs(_from_pool((n, groups), seed + 56)) + 0.1
    mean, rstd = np.empty((n, groups)), np.empty((n, groups))
    per_group = x.shape[1] // groups
    for i, low, high in blocks_of_groups(request):
        part = x[i : i + 1, low * per_group : high * per_group]
        _, mean[i, low:high], rstd[i, low:high] = group_norm(part, high - low, eps=request.eps)
    return mean, rstd


def blocks_of_groups(request: Request) -> Iterator[tuple[int, int, int]]:
    """(n, first, last + 1) of groups to be worked on together: float64 takes eight times the memory of 16-bit data,
    and there are several arrays of it."""
    elements = math.prod(request.shape) // max(1, request.shape[0] * request.num_groups)
    step = max(1, _BLOCK // max(1, elements))
    for n in range(request.shape[0]):
        for low in range(0, request.num_groups, step):
            yield n, low, min(low + step, request.num_groups)


def make_inputs(request: Request) -> dict[str, Array]:
    """x, dy, gamma, mean and rstd in their dtypes and in the shapes that the operator takes."""
    if 0 in request.shape:
        fill = {"gamma": 1, "rstd": 1}
        return {name: np.full(request.shape_of(name), fill.get(name, 0), request.dtype_of(name)) for name in INPUTS}
    drawn = dict(zip(("x", "dy", "gamma"), FAMILIES[request.family](request), strict=True))
    for i, name in enumerate(("x", "dy", "gamma")):
        if name in request.ranges:
            drawn[name] = _in_range(request, name, drawn[name].shape, i)
    x, dy = (rounded(drawn.pop(name), DTYPES[request.dtype]) for name in ("x", "dy"))
    mean, rstd = _statistics(request, x)
    stats = {"mean": mean, "rstd": rstd}
    for i, name in enumerate(stats):
        if name in request.ranges:
            stats[name] = _in_range(request, name, mean.shape, 3 + i)
    dtype = DTYPES[request.parameter_dtype]
    inputs = cases.Inputs(
        x,
        dy,
        rounded(drawn["gamma"], dtype),
        rounded(stats["mean"], dtype),
        rounded(stats["rstd"], dtype),
    )
    if request.op == PRINTED:
        inputs = cases.grouped(inputs)
    found = inputs._asdict()
    assert all(found[name].shape == request.shape_of(name) for name in found)
    return found


def _in_range(request: Request, name: str, shape: tuple[int, ...], stream: int) -> Float64:
    """Uniform on the range; or normal about its middle, the ends three standard deviations away, and cut off there."""
    distribution, low, high = request.ranges[name]
    seed = 64 * request.seed + 16 * stream
    if distribution == "uniform":
        return low + (high - low) * (uniform(shape, seed) + 1) / 2
    return np.clip((low + high) / 2 + (high - low) / 6 * normal(shape, seed), low, high)

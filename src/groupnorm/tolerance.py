"""How far a result may be from the float64 reference, and why.

u is the unit roundoff of the accumulator, 2^-24 (2^-53 for float64); docs/math.md, "Error bounds", has the
derivation. To first order in u, with everything on the right from the reference:

* a sum over positions, over a group or over the batch carries at most ROUNDINGS roundings on its way through
  float32, so it is off by at most ROUNDINGS * u * sum|terms|. Everything above a block is added in float64;
  for float64 itself each further addition counts, which `extra` holds;
* xhat in dx is one subtraction and one product: 2 u |xhat|;
* dx is rstd times (dxhat - mean_dxhat) - xhat * mean_dxhat_xhat: each term carries its own error, and two
  roundings more for the difference and the product with rstd;
* one rounding to the dtype of the result.

With an activation dy * slope stands in the place of dy, the slope a function of t = swish_scale * gn:

* t is (x - pivot) * a + b: one rounding each of the difference, of a and of the sum, two of b; where the parts are
  larger than t, they count. The slope changes by at most half of what t does, since |swish''| <= 1/2;
* the slope of a given t is within SLOPE_ROUNDINGS * u of |slope| + |t| * sig * (1 - sig), the two that cancel around
  t = -1.28: exp within 1.5 u, one rounding each of 1 + exp, the quotient, the two products and the sum. Over all
  float32 t the largest was 3.1 u;
* dy * slope is rounded once. All of it goes through the sums and into dx as an error of dy does.

`CONTRACT` are the figures promised for ordinary data: max|result - reference| / max|reference|.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .reference import swish_slope, to_float64
from .spec import Array, GroupNormGrads, dtype_name

# Of a term on its way through a block: 8 additions on a lane and one of two lanes, x - pivot, a product of the printed
# formula.
ROUNDINGS = 8 + 1 + 1 + 1
SLOPE_ROUNDINGS = 4

# float32 results, relative to the largest reference value.
CONTRACT = {"dx": 3e-7, "dgamma": 5e-7, "dbeta": 5e-7}
# The same with activation="swish": the roundings of dy * slope come on top. The largest seen over the shapes, families,
# scales and four seeds were 7.4e-7 (groups of four elements; 6.5e-7 otherwise), 4.8e-7 and 3.1e-7.
CONTRACT_SWISH = {"dx": 8e-7, "dgamma": 1e-6, "dbeta": 5e-7}
# 16-bit dx: the share of elements that are the reference rounded once, the others 1 ulp away.
CONTRACT_ROUNDED_SHARE = 0.999

_SIGNIFICAND_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
SMALLEST = {"float64": 2.0**-1074, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
LARGEST_EXPONENT = {"float64": 1023, "float32": 127, "float16": 15, "bfloat16": 127}

Float64 = npt.NDArray[np.float64]


class Bounds(NamedTuple):
    """Largest absolute error of each element of dx, dgamma and dbeta."""

    dx: Float64
    dgamma: Float64
    dbeta: Float64


def unit_roundoff(dtype: np.dtype[Any]) -> float:
    """Half the distance from 1 to the next number of `dtype`."""
    return math.ldexp(1.0, -_SIGNIFICAND_BITS[dtype_name(dtype)])


def ulp(values: Float64, dtype: np.dtype[Any]) -> Float64:
    """The distance between neighbours of `dtype` around each value."""
    name = dtype_name(dtype)
    _, exponent = np.frexp(np.abs(values))
    spacing: Float64 = np.ldexp(1.0, exponent - _SIGNIFICAND_BITS[name])
    return np.maximum(spacing, SMALLEST[name])


def round_to(values: Float64, dtype: np.dtype[Any]) -> Float64:
    """float64 values rounded once to `dtype`, ties to even, as float64."""
    name = dtype_name(dtype)
    spacing = ulp(values, dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        rounded: Float64 = np.where(np.isfinite(values), np.rint(values / spacing) * spacing, values)
    limit = math.ldexp(2.0 - 2.0 * unit_roundoff(dtype), LARGEST_EXPONENT[name])
    return np.where(np.abs(rounded) > limit, np.copysign(np.inf, rounded), rounded)


def _spread(x: Array, num_groups: int) -> Float64:
    n, c = x.shape[:2]
    return to_float64(x).reshape(n, num_groups, c // num_groups, -1)


def backward_bounds(
    dy: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    gamma: Array | None,
    reference: GroupNormGrads[Float64],
) -> Bounds:
    """Bounds for `group_norm_backward` on these inputs, from their float64 reference."""
    n, c = x.shape[:2]
    groups = mean.shape[1]
    assert reference.dx is not None
    assert reference.dgamma is not None
    assert reference.dbeta is not None
    double = x.dtype == np.float64
    u = math.ldexp(1.0, -53 if double else -24)
    extra = math.ceil(x[:1].size / 256) + n if double else 0
    roundings = (ROUNDINGS + extra) * u

    d, x_ = _spread(dy, groups), _spread(x, groups)
    gamma_ = (np.ones(c) if gamma is None else to_float64(gamma)).reshape(1, groups, c // groups, 1)
    mean_, rstd_ = (to_float64(s)[:, :, None, None] for s in (mean, rstd))
    xhat = (x_ - mean_) * rstd_
    dxhat = gamma_ * d
    axes = (2, 3)
    mean_dxhat, size_dxhat = dxhat.mean(axes, keepdims=True), np.abs(dxhat).mean(axes, keepdims=True)
    slope = (dxhat * xhat).mean(axes, keepdims=True)
    # The pivot may stand off the mean by 2^-16 standard deviations: terms grow by so much of |dy|.
    shift = 2.0**-16 if not double else 2.0**-45
    size_slope = np.abs(dxhat * xhat).mean(axes, keepdims=True) + shift * size_dxhat
    inner = (
        2 * u * np.abs(dxhat - mean_dxhat)
        + roundings * size_dxhat
        + (np.abs(xhat) + shift) * (roundings + u) * size_slope
        + 3 * u * np.abs(xhat * slope)
    )
    result_u = unit_roundoff(x.dtype)
    dx = np.abs(rstd_) * inner + 2 * u * np.abs(reference.dx).reshape(inner.shape)
    dx = dx.reshape(x.shape) + result_u * np.abs(reference.dx) + SMALLEST[dtype_name(x.dtype)]

    parameter = mean.dtype if gamma is None else gamma.dtype
    parameter_u, smallest = unit_roundoff(parameter), SMALLEST[dtype_name(parameter)]
    absolute = np.abs(d).sum((0, 3)).reshape(c)
    weighted = np.abs(d * xhat).sum((0, 3)).reshape(c)
    dgamma = roundings * (weighted + shift * absolute) + parameter_u * np.abs(reference.dgamma) + smallest
    dbeta = roundings * absolute + parameter_u * np.abs(reference.dbeta) + smallest
    return Bounds(dx, dgamma, dbeta)


def swish_backward_bounds(
    dy: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    gamma: Array | None,
    beta: Array | None,
    swish_scale: float,
    reference: GroupNormGrads[Float64],
) -> Bounds:
    """Bounds for `group_norm_backward` with activation="swish", from its float64 reference."""
    c, groups = x.shape[1], mean.shape[1]
    double = x.dtype == np.float64
    u, shift, smallest = (2.0**-53, 2.0**-45, 2.0**-1064) if double else (2.0**-24, 2.0**-16, 2.0**-140)

    d, x_ = _spread(dy, groups), _spread(x, groups)
    gamma_, beta_ = (
        (np.full(c, otherwise) if p is None else to_float64(p)).reshape(1, groups, c // groups, 1)
        for p, otherwise in ((gamma, 1.0), (beta, 0.0))
    )
    mean_, rstd_ = (to_float64(s)[:, :, None, None] for s in (mean, rstd))
    xhat = (x_ - mean_) * rstd_
    gn = gamma_ * xhat + beta_
    t, slope = swish_scale * gn, swish_slope(gn, swish_scale)
    cancels = np.abs(t) * np.exp(-np.abs(t))  # at least |t| * sig * (1 - sig)
    t_error = 3 * u * abs(swish_scale) * (np.abs(gamma_) * (np.abs(xhat) + shift) + np.abs(beta_))
    slope_error = t_error / 2 + SLOPE_ROUNDINGS * u * (np.abs(slope) + cancels) + smallest
    through = d * slope
    error = np.abs(d) * slope_error + u * np.abs(through)

    axes = (2, 3)
    weighted = np.abs(gamma_) * error
    dx = np.abs(rstd_) * (
        weighted
        + weighted.mean(axes, keepdims=True)
        + (np.abs(xhat) + shift) * (weighted * np.abs(xhat)).mean(axes, keepdims=True)
    )
    own = backward_bounds(through.reshape(x.shape), x, mean, rstd, gamma, reference)
    return Bounds(
        own.dx + dx.reshape(x.shape),
        own.dgamma + (error * (np.abs(xhat) + shift)).sum((0, 3)).reshape(c),
        own.dbeta + error.sum((0, 3)).reshape(c),
    )


def printed_bound(x: Array, dy: Array, gamma: Array, mean: Array, rstd: Array, reference: Float64) -> Float64:
    """Bound for `group_normalization_grad`: as for dx, with gamma outside and one product more."""
    u = 2.0**-24
    shape = (*x.shape[:2], -1)
    x_, dy_, gamma_ = (to_float64(a).reshape(shape) for a in (x, dy, gamma))
    mean_, rstd_ = (to_float64(s)[:, :, None] for s in (mean, rstd))
    xhat = (x_ - mean_) * rstd_
    dxhat = dy_ * gamma_
    mean_dxhat, size_dxhat = dxhat.mean(2, keepdims=True), np.abs(dxhat).mean(2, keepdims=True)
    slope = (dxhat * xhat).mean(2, keepdims=True)
    shift = 2.0**-16
    size_slope = np.abs(dxhat * xhat).mean(2, keepdims=True) + shift * size_dxhat
    roundings = (ROUNDINGS + 1) * u
    inner = (
        3 * u * (np.abs(dy_ - mean_dxhat) + np.abs(xhat * slope))
        + roundings * size_dxhat
        + (np.abs(xhat) + shift) * (roundings + u) * size_slope
    )
    bound: Float64 = np.abs(rstd_ * gamma_) * inner
    magnitude = np.abs(reference)
    return (
        bound.reshape(x.shape) + 3 * u * magnitude + unit_roundoff(x.dtype) * magnitude + SMALLEST[dtype_name(x.dtype)]
    )

"""The operators in float64 NumPy: reduce, fold, apply. The truth that everything else is measured against.

Inputs are taken as they are, rounded to their dtype already; results are float64. docs/math.md derives
the formulas. Without an activation the bits are the same on every machine: each operation is one that IEEE 754
rounds, in an order of our own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .spec import Activation, Array, GroupNormGrads, GroupNormOutputs

Float64 = npt.NDArray[np.float64]


def to_float64(array: Array) -> Float64:
    """Any of the four dtypes, exactly."""
    if array.dtype == np.dtype("V2"):  # bfloat16 read back from a file
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def total(values: Float64, axis: int) -> Float64:
    """The sum over one axis, halved again and again: the same additions with every NumPy and on every CPU.

    Off by at most ceil(log2(n)) roundings of the partial sums.
    """
    left = np.moveaxis(values, axis, -1)
    if left.shape[-1] == 0:
        return np.zeros(left.shape[:-1])
    while (n := left.shape[-1]) > 1:
        half = n // 2
        halved = left[..., :half] + left[..., half : 2 * half]
        if n % 2:
            halved[..., 0] += left[..., -1]
        left = halved
    summed: Float64 = left[..., 0]
    return summed


def _mean(values: Float64) -> Float64:
    """[N, G, D, HxW] over a group: [N, G, 1, 1]."""
    m = values.shape[2] * values.shape[3]
    mean: Float64 = total(values.reshape(*values.shape[:2], m), 2)[:, :, None, None] / m
    return mean


def _grouped(array: Array, num_groups: int) -> Float64:
    """[N, C, *] as [N, G, D, HxW]."""
    n, c = array.shape[:2]
    length = int(np.prod(array.shape[2:]))
    return to_float64(array).reshape(n, num_groups, c // num_groups, length)


def _affine(parameter: Array | None, channels: int, num_groups: int, otherwise: float) -> Float64:
    """[C] as [1, G, D, 1]."""
    values = np.full(channels, otherwise) if parameter is None else to_float64(parameter)
    return values.reshape(1, num_groups, channels // num_groups, 1)


def _stats(stats: Array) -> Float64:
    """[N, G] as [N, G, 1, 1]."""
    return to_float64(stats)[:, :, None, None]


def reduce(dy: Float64, xhat: Float64) -> tuple[Float64, Float64]:
    """sum_dy and sum_dy_xhat [N, G, D, 1]: over the positions of a channel."""
    return total(dy, 3)[..., None], total(dy * xhat, 3)[..., None]


def fold(sums: Float64, gamma: Float64, m: int) -> Any:
    """The mean over a group of what `reduce` summed, weighted by gamma: [N, G, 1, 1]."""
    return total(gamma * sums, 2)[:, :, None] / m


def apply(dy: Float64, xhat: Float64, gamma: Float64, rstd: Float64, mean_dxhat: Float64, slope: Float64) -> Any:
    """dx [N, G, D, HxW]; `slope` is the mean of dxhat * xhat."""
    return rstd * (gamma * dy - mean_dxhat - xhat * slope)


def _sigmoids(t: Float64) -> tuple[Float64, Float64]:
    """sigmoid(t) and 1 - sigmoid(t), neither from a difference; exp of nothing positive."""
    e = np.exp(-np.abs(t))
    larger, smaller = 1 / (1 + e), e / (1 + e)
    return np.where(t < 0, smaller, larger), np.where(t < 0, larger, smaller)


def swish(gn: Float64, swish_scale: float = 1.0) -> Float64:
    """gn * sigmoid(swish_scale * gn); scale 1 is SiLU."""
    return gn * _sigmoids(swish_scale * gn)[0]


def swish_slope(gn: Float64, swish_scale: float = 1.0) -> Float64:
    """The derivative of `swish` at gn."""
    t = swish_scale * gn
    sig, rest = _sigmoids(t)
    return sig * (1 + t * rest)


def group_norm_backward(
    dy: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    gamma: Array | None = None,
    *,
    recenter: bool = False,
    activation: Activation = None,
    swish_scale: float = 1.0,
    beta: Array | None = None,
) -> GroupNormGrads[Float64]:
    """Operator B in float64: the true gradient, see `groupnorm.group_norm_backward`."""
    n, c = x.shape[:2]
    num_groups = mean.shape[1]
    d, gamma_ = _grouped(dy, num_groups), _affine(gamma, c, num_groups, 1.0)
    rstd_ = _stats(rstd)
    xhat = (_grouped(x, num_groups) - _stats(mean)) * rstd_
    m = xhat.shape[2] * xhat.shape[3]
    if n == 0 or m == 0:
        return GroupNormGrads(np.zeros(x.shape), np.zeros(c), np.zeros(c))
    if activation == "swish":
        d = d * swish_slope(gamma_ * xhat + _affine(beta, c, num_groups, 0.0), swish_scale)
    if recenter:
        xhat = xhat - _mean(xhat)
    sum_dy, sum_dy_xhat = reduce(d, xhat)
    dx = apply(d, xhat, gamma_, rstd_, fold(sum_dy, gamma_, m), fold(sum_dy_xhat, gamma_, m))
    return GroupNormGrads(dx.reshape(x.shape), total(sum_dy_xhat, 0).reshape(c), total(sum_dy, 0).reshape(c))


def group_normalization_grad(x: Array, dy: Array, gamma: Array, mean: Array, rstd: Array) -> Float64:
    """Operator A in float64: the formula that CANN prints, see `groupnorm.group_normalization_grad`."""
    x_, dy_, gamma_ = (to_float64(a).reshape(*x.shape[:2], -1) for a in (x, dy, gamma))
    m = x_.shape[2]
    if x_.size == 0:
        return np.zeros(x.shape)
    rstd_ = to_float64(rstd)[:, :, None]
    xhat = (x_ - to_float64(mean)[:, :, None]) * rstd_
    s1 = total(dy_ * gamma_, 2)[..., None]
    s2 = total(dy_ * gamma_ * xhat, 2)[..., None]
    dx: Float64 = rstd_ * gamma_ * (dy_ - s1 / m - xhat * (s2 / m))
    return dx.reshape(x.shape)


def group_norm(
    x: Array,
    num_groups: int,
    gamma: Array | None = None,
    beta: Array | None = None,
    eps: float = 1e-5,
    *,
    activation: Activation = None,
    swish_scale: float = 1.0,
) -> GroupNormOutputs[Float64]:
    """Operator C in float64: the forward, see `groupnorm.group_norm`."""
    n, c = x.shape[:2]
    x_ = _grouped(x, num_groups)
    if x_[:1].size == 0 or n == 0:
        rstd_empty = np.full((n, num_groups), 1 / np.sqrt(eps) if eps > 0 else np.inf)
        return GroupNormOutputs(np.zeros(x.shape), np.zeros((n, num_groups)), rstd_empty)
    mean = _mean(x_)
    centred = x_ - mean
    rest = _mean(centred)  # what the rounding of the mean left over
    centred -= rest
    mean += rest
    rstd = 1 / np.sqrt(_mean(centred**2) + eps)
    y = centred * rstd * _affine(gamma, c, num_groups, 1.0) + _affine(beta, c, num_groups, 0.0)
    if activation == "swish":
        y = swish(y, swish_scale)
    return GroupNormOutputs(y.reshape(x.shape), mean.reshape(n, num_groups), rstd.reshape(n, num_groups))

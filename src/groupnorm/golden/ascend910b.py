"""The printed formula in the arithmetic of the Ascend 910B kernel: a model made from its source.

Not verified on hardware. What it follows, in op_kernel/group_normalization_grad.h of the operator:

* everything in float32, each vector operation rounded by itself (no FMA);
* a group is cut into tiles of at most 2880 (float32) or 3760 (16-bit) elements, what fits the unified buffer;
* ReduceSum adds 64 elements (one repeat) as a binary tree, the repeats of a tile one after another, the tiles one
  after another; a short repeat is filled up with zeros;
* 16-bit results are rounded to nearest, ties away from zero (CAST_ROUND).

Assumed, because the source does not say: the tree of a repeat adds neighbours; overflow in the last cast gives Inf
(the instruction's document says that it saturates: `overflow`); subnormals are kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..spec import Array, dtype_name
from ..tolerance import LARGEST_EXPONENT, ulp

Float32 = npt.NDArray[np.float32]
TILE = {"float32": 2880, "float16": 3760, "bfloat16": 3760}
_REPEAT = 64
_BLOCK_BYTES = 32


def reduce_sum(values: Float32, tile: int) -> Float32:
    """Sums [R] of rows [R, M] in the order of the kernel."""
    total = np.zeros(values.shape[0], np.float32)
    for start in range(0, values.shape[1], tile):
        part = values[:, start : start + tile]
        short = -part.shape[1] % _REPEAT
        tree = np.pad(part, ((0, 0), (0, short))).reshape(len(part), -1, _REPEAT)
        while tree.shape[2] > 1:
            tree = tree[:, :, ::2] + tree[:, :, 1::2]
        of_tile = tree[:, 0, 0]
        for repeat in range(1, tree.shape[1]):
            of_tile = of_tile + tree[:, repeat, 0]
        total = total + of_tile
    return total


def cast_round(values: Float32, dtype: np.dtype[Any], overflow: str = "inf") -> Array:
    """float32 to a 16-bit dtype: to nearest, ties away from zero; `overflow` inf or saturate."""
    exact = values.astype(np.float64)
    spacing = ulp(np.where(np.isfinite(exact), exact, 0), dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = np.copysign(np.floor(np.abs(exact) / spacing + 0.5) * spacing, exact)
        rounded = np.where(np.isfinite(exact), rounded, exact)
        if overflow == "saturate":
            largest = largest_of(dtype)
            rounded = np.where(np.isnan(rounded), rounded, np.clip(rounded, -largest, largest))
        result: Array = rounded.astype(dtype)
    return result


def largest_of(dtype: np.dtype[Any]) -> float:
    """The largest finite number of a dtype."""
    name = dtype_name(dtype)
    bits = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}[name]
    return float(np.ldexp(2.0 - np.ldexp(1.0, 1 - bits), LARGEST_EXPONENT[name]))


def before_cast(x: Array, dy: Array, gamma: Array, mean: Array, rstd: Array) -> Float32:
    """dx [N, G, *] in float32, before it is rounded to the dtype of x."""
    rows = (x.shape[0] * x.shape[1], int(np.prod(x.shape[2:])))
    # + 0 as the kernel moves data (Adds): it turns -0 into +0.
    x_, dy_, gamma_ = (a.astype(np.float32).reshape(rows) + np.float32(0) for a in (x, dy, gamma))
    mean_, rstd_ = (a.astype(np.float32).reshape(-1, 1) for a in (mean, rstd))
    itemsize, m = x.dtype.itemsize, np.float32(rows[1])
    aligned = -(-rows[1] * itemsize // _BLOCK_BYTES) * _BLOCK_BYTES // itemsize
    tile = max(1, min(TILE[dtype_name(x.dtype)], aligned))
    with np.errstate(all="ignore"):
        xhat = (x_ + -mean_) * rstd_
        weighted = dy_ * gamma_
        s1 = reduce_sum(weighted, tile)[:, None]
        s2 = reduce_sum(weighted * xhat, tile)[:, None]
        coefficient = rstd_ * (np.float32(1) / m)
        dx = (gamma_ * ((dy_ * m + -s1) - xhat * s2)) * coefficient
    return dx.reshape(x.shape)


def group_normalization_grad(
    x: Array, dy: Array, gamma: Array, mean: Array, rstd: Array, overflow: str = "inf"
) -> Array:
    """dx [N, G, *] in the dtype of x; the operands as `groupnorm.group_normalization_grad` takes them."""
    if x.size == 0:
        return np.zeros(x.shape, x.dtype)
    dx = before_cast(x, dy, gamma, mean, rstd)
    return dx + np.float32(0) if x.dtype == np.float32 else cast_round(dx, x.dtype, overflow)

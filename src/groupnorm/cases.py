"""Named shapes and families of data: what tests, benchmarks and golden data share.

Data is a function of (shape, family, seed) through a counter-based generator of our own, so that it is the
same with every version of NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import spec
from .reference import Float64, group_norm
from .spec import Array


class Case(NamedTuple):
    """A shape [N, C, *] with its number of groups."""

    name: str
    shape: tuple[int, ...]
    num_groups: int


class Inputs(NamedTuple):
    """The operands of the backward, in the dtypes of the case."""

    x: Array
    dy: Array
    gamma: Array
    mean: Array
    rstd: Array


# Small enough for the slowest SIMD level, each with a corner of its own.
SMALL = (
    Case("tiny", (1, 4, 2, 2), 2),
    Case("odd", (2, 8, 5, 7), 2),
    Case("rank2", (5, 12), 3),
    Case("rank3", (3, 8, 50), 4),
    Case("rank5", (2, 6, 3, 4, 5), 3),
    Case("instance_norm", (2, 7, 9, 9), 7),
    Case("layer_norm", (3, 40, 17), 1),
    Case("one_element", (3, 8, 1, 1), 8),
    Case("short_rows", (2, 64, 4, 4), 32),
    Case("wide_rows", (2, 4, 33, 40), 2),
    Case("many_samples", (300, 32, 1, 3), 16),
    Case("many_channels", (1, 300, 6), 4),
    Case("chunks", (1, 4, 70, 71), 2),
    Case("few_groups", (1, 24, 41, 41), 1),
)

# Layers of networks that people train, and what stands for a kind: the cases of benchmarks.
LAYERS = (
    Case("sd_unet_320x64", (8, 320, 64, 64), 32),
    Case("sd_unet_640x32", (8, 640, 32, 32), 32),
    Case("sd_unet_1280x16", (8, 1280, 16, 16), 32),
    Case("sd_unet_1280x8", (8, 1280, 8, 8), 32),
    Case("sd_unet_960x32_pair", (2, 960, 32, 32), 32),
    Case("sd_unet_320x64_pair", (2, 320, 64, 64), 32),
    Case("sd_unet_1280x8_pair", (2, 1280, 8, 8), 32),
    Case("sd_vae_128x256", (4, 128, 256, 256), 32),
    Case("sd_vae_256x128", (4, 256, 128, 128), 32),
    Case("sd_vae_512x64", (4, 512, 64, 64), 32),
    Case("video_vae_128", (1, 128, 8, 64, 64), 32),
    Case("video_vae_512", (1, 512, 4, 32, 32), 32),
    Case("resnet_gn_64x56", (64, 64, 56, 56), 16),
    Case("resnet_gn_256x56", (16, 256, 56, 56), 32),
    Case("resnet_gn_1024x14", (32, 1024, 14, 14), 32),
    Case("resnet_gn_2048x7", (32, 2048, 7, 7), 32),
    Case("segmentation_32x256", (4, 32, 256, 256), 8),
    Case("segmentation_256x32", (4, 256, 32, 32), 8),
    Case("segmentation_3d_32x64", (1, 32, 64, 64, 64), 8),
    Case("detection_256x25", (1, 256, 25, 25), 32),
    Case("speech_256x200", (4, 256, 200), 32),
    Case("cifar_64x16", (16, 64, 16, 16), 8),
    Case("rank2_4096", (4096, 1024), 32),
    Case("rank2_64", (64, 512), 32),
    Case("instance_norm_64x128", (4, 64, 128, 128), 64),
    Case("instance_norm_256x16", (2, 256, 16, 16), 256),
    Case("layer_norm_64x56", (16, 64, 56, 56), 1),
    Case("layer_norm_rank2", (4096, 768), 1),
    Case("tiny", (1, 4, 2, 2), 2),
)


_DRAWN = 1 << 16  # numbers at a time: what is in between stays in cache


def uniform(shape: tuple[int, ...], seed: int) -> Float64:
    """Multiples of 2^-23 in [-1, 1): SplitMix64 of the index (Steele, Lea and Flood 2014)."""
    values = np.empty(math.prod(shape))
    for start in range(0, values.size, _DRAWN):
        part = values[start : start + _DRAWN]
        with np.errstate(over="ignore"):
            z = np.arange(start + 1, start + 1 + part.size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            z += np.uint64(seed) * np.uint64(0xD1B54A32D192ED03)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z ^= z >> np.uint64(31)
        part[:] = (z >> np.uint64(40)).astype(np.float64) / 2**23 - 1
    return values.reshape(shape)


def _integers(shape: tuple[int, ...], seed: int, largest: int) -> Float64:
    values: Float64 = np.rint(uniform(shape, seed) * largest)
    return values


# A family makes x, dy [N, C, *] and gamma [C] in float64, before they are rounded to the dtype. ORDINARY are those
# for which the figures of tolerance.CONTRACT are promised.
_Family = Callable[[tuple[int, ...], int], tuple[Float64, Float64, Float64]]


def _centred(shape: tuple[int, ...], seed: int) -> tuple[Float64, Float64, Float64]:
    return uniform(shape, seed), uniform(shape, seed + 1), 1 + 0.5 * uniform((shape[1],), seed + 2)


def _offset(ratio: float) -> _Family:
    def family(shape: tuple[int, ...], seed: int) -> tuple[Float64, Float64, Float64]:
        x, dy, gamma = _centred(shape, seed)
        return ratio + math.sqrt(3) * x, dy, gamma  # standard deviation 1

    return family


def _dy_offset(shape: tuple[int, ...], seed: int) -> tuple[Float64, Float64, Float64]:
    x, dy, gamma = _centred(shape, seed)
    return x, 3 + dy, gamma


def _few_values(values_of: Callable[[Float64], Float64]) -> _Family:
    """x that takes the same values again and again: what is rounded off them is the same each time."""

    def family(shape: tuple[int, ...], seed: int) -> tuple[Float64, Float64, Float64]:
        x, dy, gamma = _centred(shape, seed)
        return values_of(x), 1.5 + dy, gamma

    return family


def _cancelling(shape: tuple[int, ...], seed: int) -> tuple[Float64, Float64, Float64]:
    x, dy, gamma = _centred(shape, seed)
    return x, 1 + x + dy / 1024, np.ones_like(gamma)  # dy lies almost in the span of 1 and xhat


def _scaled(x_scale: float, dy_scale: float) -> _Family:
    def family(shape: tuple[int, ...], seed: int) -> tuple[Float64, Float64, Float64]:
        x, dy, gamma = _centred(shape, seed)
        return x * x_scale, dy * dy_scale, gamma

    return family


FAMILIES: dict[str, _Family] = {
    "centred": _centred,
    "offset_100": _offset(100.0),
    "offset_10000": _offset(10000.0),
    "dy_offset": _dy_offset,
    "relu": _few_values(lambda x: np.maximum(x, 0)),
    "pixels": _few_values(lambda x: np.rint((x + 1) * 127.5) / 255),
    "sparse": _few_values(lambda x: np.where(np.abs(x) > 0.98, x, 0)),
    "cancelling": _cancelling,
    "large": _scaled(2.0**12, 2.0**12),
    "small": _scaled(2.0**-10, 2.0**-10),
}


ORDINARY = tuple(name for name in FAMILIES if name != "cancelling")


def bfloat16() -> np.dtype[Any]:
    """The dtype of ml_dtypes, which brings bfloat16 to NumPy (extra groupnorm[cli])."""
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def _as_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    return bfloat16() if isinstance(dtype, str) and dtype == "bfloat16" else np.dtype(dtype)


def make(
    case: Case,
    dtype: npt.DTypeLike,
    *,
    parameter_dtype: npt.DTypeLike | None = None,
    family: str = "centred",
    seed: int = 1,
) -> Inputs:
    """Inputs of `case` with exact statistics, rounded to their dtypes.

    `parameter_dtype` is that of gamma, mean and rstd; by default float32 for 16-bit data, else `dtype`.
    """
    data = _as_dtype(dtype)
    parameter = spec.parameter_dtype(data) if parameter_dtype is None else _as_dtype(parameter_dtype)
    if family not in FAMILIES:
        raise ValueError(f"family: {family!r}; accepted: {', '.join(FAMILIES)}")
    x64, dy64, gamma64 = FAMILIES[family](case.shape, seed)
    x = x64.astype(data)
    _, mean, rstd = group_norm(x, case.num_groups)
    return Inputs(x, dy64.astype(data), gamma64.astype(parameter), mean.astype(parameter), rstd.astype(parameter))


def make_exact(case: Case, dtype: npt.DTypeLike, *, seed: int = 1) -> Inputs:
    """Small integers times powers of two, statistics included, in one dtype: sums are exact in any order."""
    data = _as_dtype(dtype)
    stats = (case.shape[0], case.num_groups)
    return Inputs(
        _integers(case.shape, seed, 3).astype(data),
        _integers(case.shape, seed + 1, 3).astype(data),
        np.ldexp(1.0, _integers((case.shape[1],), seed + 2, 1).astype(np.int64)).astype(data),
        _integers(stats, seed + 3, 2).astype(data),
        np.ldexp(1.0, _integers(stats, seed + 4, 1).astype(np.int64)).astype(data),
    )


def grouped(inputs: Inputs) -> Inputs:
    """The operands of operator A from those of B: x and dy as [N, G, D, *], gamma broadcast, one dtype."""
    n, groups = inputs.mean.shape
    c, *rest = inputs.x.shape[1:]
    shape = (n, groups, c // groups, *rest)
    dtype = inputs.x.dtype
    gamma = inputs.gamma.reshape(1, groups, c // groups, *(1 for _ in rest))
    return Inputs(
        inputs.x.reshape(shape),
        inputs.dy.reshape(shape),
        np.ascontiguousarray(np.broadcast_to(gamma, shape)).astype(dtype),
        inputs.mean.astype(dtype),
        inputs.rstd.astype(dtype),
    )

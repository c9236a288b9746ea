"""What goes in and what comes out: every dtype and shape rule of the Python side, with its message.

Errors are `TypeError` for what an argument is (None, not an array, a dtype) and `ValueError` for its
shape, layout or value. Each names the argument, what came and what is accepted.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from . import _core

Array = npt.NDArray[Any]
T = TypeVar("T")
Activation = Literal["swish"] | None

# Codes of the C++ core (csrc/core/dtype.h).
FLOAT32: Final = 0
FLOAT16: Final = 1
BFLOAT16: Final = 2
FLOAT64: Final = 3
DTYPE_NAMES: Final = ("float32", "float16", "bfloat16", "float64")

CONTIGUOUS: Final = 0
CHANNELS_LAST: Final = 1

# Codes of activations (csrc/core/group_norm.h).
NO_ACTIVATION: Final = 0
SWISH: Final = 1

# bfloat16 is ml_dtypes.bfloat16, or the two raw bytes that NumPy reads back from a file of it.
_CODES: dict[np.dtype[Any], int] = {
    np.dtype(np.float32): FLOAT32,
    np.dtype(np.float16): FLOAT16,
    np.dtype("V2"): BFLOAT16,
    np.dtype(np.float64): FLOAT64,
}


class GroupNormGrads(NamedTuple, Generic[T]):
    """The gradients of `group_norm_backward`; None where `output_mask` is False."""

    dx: T | None
    dgamma: T | None
    dbeta: T | None


class GroupNormOutputs(NamedTuple, Generic[T]):
    """What `group_norm` returns."""

    y: T
    mean: T
    rstd: T


class Dims(NamedTuple):
    """Sizes of a problem: x is [N, C, *], `length` the product of the trailing dimensions."""

    n: int
    channels: int
    length: int
    num_groups: int


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The name of a dtype in messages; two raw bytes are bfloat16."""
    code = _CODES.get(dtype)
    return str(dtype) if code is None else DTYPE_NAMES[code]


def dtype_code(name: str, dtype: np.dtype[Any], accepted: str = "float64, float32, float16, bfloat16") -> int:
    """The core's code of `dtype`, or TypeError naming the argument `name`."""
    code = _CODES.get(dtype)
    if code is not None:
        return code
    bfloat16 = dtype.name == "bfloat16" and dtype.itemsize == 2
    if bfloat16 and dtype.isnative:
        _CODES[dtype] = BFLOAT16
        _core.register_bfloat16(dtype.num)
        return BFLOAT16
    if not dtype.isnative and (bfloat16 or dtype.newbyteorder("=") in _CODES):
        raise TypeError(
            f"{name}: dtype {dtype.newbyteorder('=')} is byte-swapped ({dtype.str}); accepted: native byte "
            f"order, which {name}.astype({name}.dtype.newbyteorder('=')) gives"
        )
    raise TypeError(f"{name}: dtype {dtype}; accepted: {accepted}")


def parameter_dtype(x_dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of statistics made for `x_dtype`: float32 for 16-bit x, else that of x."""
    return np.dtype(np.float64) if x_dtype == np.float64 else np.dtype(np.float32)


def _mismatch(wrong: str, rule: str, operands: Sequence[tuple[str, Array | None]]) -> TypeError:
    found = ", ".join(f"{name} {dtype_name(a.dtype)}" for name, a in operands if a is not None)
    dtype = next(dtype_name(a.dtype) for name, a in operands if name == wrong and a is not None)
    return TypeError(f"{wrong}: dtype {dtype} does not go with the others ({found}); accepted: {rule}")


_PARAMETER_RULE: Final = (
    "float64, float32, float16 or bfloat16 for {data}, and for {params} the dtype of x, or float32 when x is 16-bit"
)


def _parameter_code(
    name: str, array: Array, x_code: int, data: str, operands: Sequence[tuple[str, Array | None]]
) -> int:
    code = dtype_code(name, array.dtype)
    if code != x_code and not (code == FLOAT32 and x_code in (FLOAT16, BFLOAT16)):
        params = ", ".join(n for n, a in operands if a is not None and n not in data.split(", "))
        raise _mismatch(name, _PARAMETER_RULE.format(data=data, params=params), operands)
    return code


def check_shape(name: str, array: Array, shape: tuple[int, ...], meaning: str) -> None:
    """ValueError unless `array` has exactly `shape`."""
    if array.shape != shape:
        raise ValueError(f"{name}: shape {array.shape}; accepted: {shape}, {meaning}")


def _check_groups(name: str, num_groups: int, channels: int) -> None:
    if num_groups < 1 or channels % num_groups:
        raise ValueError(
            f"{name}: num_groups = {num_groups} with C = {channels} channels; accepted: a positive number of "
            "groups that divides C"
        )


def check_backward(
    dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array | None, beta: Array | None = None
) -> tuple[Dims, int, int, int, int]:
    """Operator B: the dims and the codes of x, of gamma and beta (of the statistics without one), of mean."""
    operands = (("x", x), ("dy", dy), ("gamma", gamma), ("beta", beta), ("mean", mean), ("rstd", rstd))
    x_code = dtype_code("x", x.dtype)
    if dtype_code("dy", dy.dtype) != x_code:
        raise _mismatch("dy", "the dtype of x", operands)
    stats_code = _parameter_code("mean", mean, x_code, "x, dy", operands)
    if dtype_code("rstd", rstd.dtype) != stats_code:
        raise _mismatch("rstd", "the dtype of mean", operands)
    gamma_code, beta_code = (
        stats_code if array is None else _parameter_code(name, array, x_code, "x, dy", operands)
        for name, array in operands[2:4]
    )

    shape = x.shape
    if len(shape) < 2:
        raise ValueError(f"x: rank {len(shape)}, shape {shape}; accepted: rank 2 and up, [N, C, *]")
    check_shape("dy", dy, shape, "the shape of x")
    if mean.ndim != 2 or mean.shape[0] != shape[0]:
        raise ValueError(f"mean: shape {mean.shape}; accepted: ({shape[0]}, num_groups), that is [N, G]")
    num_groups = mean.shape[1]
    _check_groups("mean", num_groups, shape[1])
    check_shape("rstd", rstd, mean.shape, "the shape of mean")
    for name, array in operands[2:4]:
        if array is not None:
            check_shape(name, array, (shape[1],), "one element per channel")
    return Dims(shape[0], shape[1], math.prod(shape[2:]), num_groups), x_code, gamma_code, beta_code, stats_code


def check_printed(x: Array, dy: Array, gamma: Array, mean: Array, rstd: Array) -> tuple[Dims, int]:
    """Operator A: the dims (a group is one channel) and the code of the one dtype."""
    operands = (("x", x), ("dy", dy), ("gamma", gamma), ("mean", mean), ("rstd", rstd))
    accepted = "float32, float16, bfloat16"
    code = dtype_code("x", x.dtype, accepted)
    if code == FLOAT64:
        raise TypeError(f"x: dtype float64; accepted: {accepted}")
    for name, array in operands:
        if dtype_code(name, array.dtype, accepted) != code:
            raise _mismatch(name, "one dtype for all, float32, float16 or bfloat16", operands)
    shape = x.shape
    if not 3 <= len(shape) <= 8:
        raise ValueError(f"x: rank {len(shape)}, shape {shape}; accepted: rank 3 to 8, [N, G, *]")
    check_shape("dy", dy, shape, "the shape of x")
    check_shape("gamma", gamma, shape, "the shape of x (gamma comes broadcast)")
    check_shape("mean", mean, shape[:2], "the first two dimensions of x")
    check_shape("rstd", rstd, shape[:2], "the first two dimensions of x")
    return Dims(shape[0], shape[1], math.prod(shape[2:]), shape[1]), code


def check_forward(
    x: Array, num_groups: int, gamma: Array | None, beta: Array | None, eps: float
) -> tuple[Dims, int, int, int]:
    """Operator C: the dims and the codes of x, gamma, beta (of the statistics where there is none)."""
    operands = (("x", x), ("gamma", gamma), ("beta", beta))
    x_code = dtype_code("x", x.dtype)
    stats_code = FLOAT64 if x_code == FLOAT64 else FLOAT32
    codes = [
        stats_code if array is None else _parameter_code(name, array, x_code, "x", operands)
        for name, array in operands[1:]
    ]
    shape = x.shape
    if len(shape) < 2:
        raise ValueError(f"x: rank {len(shape)}, shape {shape}; accepted: rank 2 and up, [N, C, *]")
    if isinstance(num_groups, bool) or not isinstance(num_groups, (int, np.integer)):
        raise TypeError(f"num_groups: {type(num_groups).__name__} {num_groups!r}; accepted: a positive int")
    _check_groups("num_groups", int(num_groups), shape[1])
    for name, array in operands[1:]:
        if array is not None:
            check_shape(name, array, (shape[1],), "one element per channel")
    if not isinstance(eps, (float, int, np.floating, np.integer)) or isinstance(eps, bool):
        raise TypeError(f"eps: {type(eps).__name__} {eps!r}; accepted: a float")
    if not 0 <= eps <= 1e300:  # also refuses NaN, infinity and ints that no float holds
        raise ValueError(f"eps: {eps}; accepted: a finite number, 0 or above")
    return Dims(shape[0], shape[1], math.prod(shape[2:]), int(num_groups)), x_code, codes[0], codes[1]


_MASKS: Final = {
    (dx, dgamma, dbeta): (dx, dgamma, dbeta) for dx, dgamma, dbeta in itertools.product((True, False), repeat=3)
}


def check_output_mask(output_mask: Sequence[bool]) -> tuple[bool, bool, bool]:
    """Three booleans: which of dx, dgamma and dbeta to compute."""
    try:
        return _MASKS[tuple(output_mask)]  # type: ignore[index]
    except (TypeError, KeyError):
        raise ValueError(f"output_mask: {output_mask!r}; accepted: three booleans, for dx, dgamma and dbeta") from None


def check_flag(name: str, flag: Any) -> bool:
    """True or False, nothing that merely counts as it."""
    if not isinstance(flag, (bool, np.bool_)):
        raise TypeError(f"{name}: {type(flag).__name__} {flag!r}; accepted: True or False")
    return bool(flag)


def check_activation(activation: Activation, swish_scale: float, *, recenter: bool = False) -> tuple[int, float]:
    """What follows the normalization: the code of the activation, and its scale."""
    if activation is not None and (not isinstance(activation, str) or activation != "swish"):
        raise ValueError(f"activation: {activation!r}; accepted: 'swish' or None")
    if not isinstance(swish_scale, (float, int, np.floating, np.integer)) or isinstance(swish_scale, bool):
        raise TypeError(f"swish_scale: {type(swish_scale).__name__} {swish_scale!r}; accepted: a float")
    if not abs(swish_scale) <= sys.float_info.max:  # also refuses NaN and ints that no float holds
        raise ValueError(f"swish_scale: {swish_scale}; accepted: a finite number")
    if activation is None:
        if swish_scale != 1:
            raise ValueError(
                f"swish_scale: {swish_scale} without an activation; accepted: with activation='swish' only"
            )
        return NO_ACTIVATION, 1.0
    if recenter:
        raise ValueError("recenter: True with an activation; accepted: False (gn is that of the mean as given)")
    return SWISH, float(swish_scale)


def check_out(out: Any, names: tuple[str, ...], wanted: tuple[bool, ...]) -> tuple[Any, ...]:
    """`out` as one entry per output; None where one is to be allocated."""
    if out is None:
        return (None,) * len(names)
    if not isinstance(out, (tuple, list)) or len(out) != len(names):
        count = len(out) if isinstance(out, (tuple, list)) else type(out).__name__
        raise TypeError(f"out: {count}; accepted: a tuple of {len(names)} arrays or None, for {', '.join(names)}")
    for i, entry in enumerate(out):
        if entry is not None and not wanted[i]:
            raise ValueError(f"out: an array for {names[i]}, which output_mask leaves out; accepted: None")
    return tuple(out)

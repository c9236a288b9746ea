"""Arrays of other libraries, in and out through DLPack; NumPy arrays pass as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _core
from .spec import Array

_CPU = 1  # kDLCPU
_BFLOAT16 = np.dtype("V2")


def to_numpy(name: str, array: Any) -> Array:
    """`array` as a NumPy array on the same memory; bfloat16 of another library as two raw bytes.

    TypeError for None, masked arrays, what is no array, and arrays that are not in CPU memory.
    """
    if type(array) is np.ndarray:
        return array
    if isinstance(array, np.ndarray):
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(f"{name}: a masked array; accepted: an array without a mask")
        return array.view(np.ndarray)
    if array is None or not hasattr(array, "__dlpack__"):
        what = "None" if array is None else type(array).__name__
        raise TypeError(f"{name}: {what}; accepted: a NumPy array or a CPU array with DLPack")
    _check_tensor(name, array)
    try:
        device = tuple(int(part) for part in array.__dlpack_device__())
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise _unreadable(name, array, error) from error
    if device[0] != _CPU:
        raise TypeError(f"{name}: an array on DLPack device {device}; accepted: CPU memory")
    try:
        bits = _core.bfloat16_bits(array) if "bfloat16" in str(array.dtype) else None
        return np.from_dlpack(array) if bits is None else bits.view(_BFLOAT16)
    except (BufferError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise _unreadable(name, array, error) from error


def _unreadable(name: str, array: Any, error: Exception) -> TypeError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return TypeError(
        f"{name}: {type(array).__name__} that DLPack cannot pass on: {reason}; accepted: a dense array in CPU memory"
    )


def _check_tensor(name: str, array: Any) -> None:
    """What PyTorch hands out through DLPack although the memory is not what the tensor means."""
    if getattr(array, "requires_grad", False):
        raise TypeError(f"{name}: a tensor that requires grad; accepted: tensor.detach()")
    if callable(getattr(array, "is_neg", None)) and array.is_neg():
        raise TypeError(f"{name}: a tensor that is negated in name only; accepted: tensor.resolve_neg()")
    if hasattr(array, "fake_mode"):
        raise TypeError(f"{name}: a fake tensor, which has no memory; accepted: a CPU tensor with memory")


def _from_dlpack(like: Any) -> Callable[[Any], Any]:
    """The `from_dlpack` of the library that `like` comes from."""
    if hasattr(like, "__array_namespace__"):
        namespace = like.__array_namespace__()
    else:
        namespace = sys.modules[type(like).__module__.partition(".")[0]]
    from_dlpack: Callable[[Any], Any] | None = getattr(namespace, "from_dlpack", None)
    if from_dlpack is None:
        raise TypeError(
            f"x: {type(like).__name__}, whose library has no from_dlpack to make results with; accepted: out="
        )
    return from_dlpack


def to_kind_of(like: Any, array: Array) -> Any:
    """`array` as the kind of array that `like`, which is not NumPy's, is; on the same memory."""
    if array.dtype == _BFLOAT16:
        return _from_dlpack(like)(_core.bfloat16_array(array.view(np.uint16)))
    return _from_dlpack(like)(array)

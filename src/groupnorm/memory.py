"""Where results lie: the two layouts that the core works in, copies into them, and outputs given or made."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .arrays import to_numpy
from .spec import CHANNELS_LAST, CONTIGUOUS, Array, dtype_name


def layout_of(array: Array) -> int | None:
    """CONTIGUOUS, CHANNELS_LAST, or None for what the core cannot address (strides of dimensions of size 1
    do not count)."""
    flags = array.flags
    if not flags.aligned:
        return None
    if flags.c_contiguous:
        return CONTIGUOUS
    if array.ndim > 2 and np.moveaxis(array, 1, -1).flags.c_contiguous:
        return CHANNELS_LAST
    return None


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], layout: int = CONTIGUOUS) -> Array:
    """An array of `shape` [N, C, *] in `layout`."""
    if layout == CONTIGUOUS:
        return np.empty(shape, dtype)
    return np.moveaxis(np.empty((shape[0], *shape[2:], shape[1]), dtype), -1, 1)


def in_layout(array: Array, layout: int) -> Array:
    """`array` itself where it lies in `layout`, else a copy that does."""
    if layout == CONTIGUOUS:
        return array if array.flags.c_contiguous and array.flags.aligned else np.array(array, order="C")
    if array.flags.aligned and np.moveaxis(array, 1, -1).flags.c_contiguous:
        return array
    copy = empty(array.shape, array.dtype, layout)
    copy[...] = array
    return copy


def same_place(a: Array, b: Array) -> bool:
    """Whether two arrays are the same elements at the same addresses."""
    return a is b or (
        a.shape == b.shape
        and a.dtype == b.dtype
        and _same_layout(a, b)
        and a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
    )


def overlap(a: Array, b: Array) -> bool:
    """Whether two arrays share an element; when that is too hard to tell, yes."""
    try:
        return np.shares_memory(a, b, max_work=10_000)  # type: ignore[arg-type]  # the stub knows -1 and 0 only
    except np.exceptions.TooHardError:
        return True


class Output(NamedTuple):
    """One output of a call: what the caller gets, and what the core writes."""

    result: Array
    buffer: Array

    def finish(self) -> Array:
        """The result, after the core has written the buffer."""
        if self.buffer is not self.result:
            self.result[...] = self.buffer
        return self.result


def plan_layout(x: Array) -> tuple[int, Array | None]:
    """The layout to compute in, and an array with x's axis order where x itself is in neither layout."""
    layout = layout_of(x)
    if layout is not None:
        return layout, None
    like = np.empty_like(x, order="K", subok=False)
    dense = layout_of(like)
    return (CONTIGUOUS if dense is None else dense), like


def element_output(given: Array | None, x: Array, layout: int, like: Array | None) -> Output:
    """dx or y: in the layout of x, computed in `layout`."""
    if given is None and like is None:
        made = empty(x.shape, x.dtype, layout)
        return Output(made, made)
    result = like if given is None else given
    assert result is not None
    buffer = result if layout_of(result) == layout else empty(x.shape, x.dtype, layout)
    return Output(result, buffer)


def check_given(
    name: str,
    given: Any,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    strides_of: Array | None,
    inputs: tuple[tuple[str, Array | None], ...],
    in_place: tuple[str, ...] = (),
) -> Array:
    """An output that the caller gave: ValueError or TypeError unless the core may write the result to it.

    `strides_of` is an array whose layout it must have (None: contiguous); it may be one of the inputs named
    in `in_place` and overlap none otherwise.
    """
    array = to_numpy(f"out ({name})", given)
    if array.dtype != dtype:
        found, wanted = dtype_name(array.dtype), dtype_name(dtype)
        if found == wanted:  # bfloat16 of ml_dtypes and as two raw bytes
            found, wanted = f"{array.dtype}", f"{dtype}, that of x or gamma"
        raise TypeError(f"out ({name}): dtype {found}; accepted: {wanted}")
    if array.shape != shape:
        raise ValueError(f"out ({name}): shape {array.shape}; accepted: {shape}")
    if not array.flags.writeable:
        raise ValueError(f"out ({name}): a read-only array; accepted: one that can be written")
    if not array.flags.aligned:
        raise ValueError(f"out ({name}): elements are not aligned; accepted: elements of {dtype} on their own size")
    if strides_of is None:
        if not array.flags.c_contiguous:
            raise ValueError(f"out ({name}): strides {array.strides}; accepted: a contiguous array")
    elif array.size and not _same_layout(array, strides_of):
        raise ValueError(
            f"out ({name}): strides {array.strides} for shape {shape}; accepted: the layout of x, "
            f"strides {strides_of.strides}"
        )
    for input_name, other in inputs:
        if other is None or not np.may_share_memory(array, other) or not overlap(array, other):
            continue
        if input_name in in_place and same_place(array, other):
            continue
        allowed = " or ".join(in_place)
        raise ValueError(
            f"out ({name}): overlaps {input_name}; accepted: memory of its own"
            + (f", or exactly that of {allowed}" if allowed else "")
        )
    return array


def _same_layout(a: Array, b: Array) -> bool:
    return a.strides == b.strides or all(
        n == 1 or s == t for n, s, t in zip(a.shape, a.strides, b.strides, strict=True)
    )

"""How tensors lie in memory, and what of it the core takes as it is."""

from __future__ import annotations

import torch

from .. import spec
from .check import Tensor


def aligned(tensor: Tensor) -> bool:
    """Whether the address is one of its dtype."""
    return tensor.data_ptr() % tensor.element_size() == 0


def layout_of(tensor: Tensor) -> int | None:
    """CONTIGUOUS, CHANNELS_LAST, or None for what the core cannot address."""
    if not aligned(tensor):
        return None
    if tensor.is_contiguous():
        return spec.CONTIGUOUS
    return spec.CHANNELS_LAST if tensor.dim() > 2 and tensor.movedim(1, -1).is_contiguous() else None


def in_layout(tensor: Tensor, layout: int) -> Tensor:
    """The tensor itself where it lies so, else a copy that does."""
    across = tensor if layout == spec.CONTIGUOUS else tensor.movedim(1, -1)
    if across.is_contiguous() and aligned(across):
        return tensor
    copy = across.clone(memory_format=torch.contiguous_format)
    return copy if layout == spec.CONTIGUOUS else copy.movedim(-1, 1)


def contiguous(tensor: Tensor) -> Tensor:
    """The tensor itself where it is contiguous, else a copy that is."""
    return in_layout(tensor, spec.CONTIGUOUS)


def optional(tensor: Tensor | None) -> Tensor | None:
    """The same, for what may not be there."""
    return None if tensor is None else contiguous(tensor)


def address(tensor: Tensor | None) -> int:
    """Of the first element; 0 for what is not there."""
    if tensor is None:
        return 0
    at = tensor.data_ptr()
    # Where memory was freed, as FSDP does, the offset is left of the address.
    if tensor.numel() and at == tensor.storage_offset() * tensor.element_size():
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)}: its memory is not allocated; accepted: allocated")
    return at


def empty_for(input: Tensor, layout: int) -> tuple[Tensor, Tensor]:
    """What the caller gets, with the strides of empty_like, and what the core writes."""
    result = torch.empty_like(input)
    return result, result if layout_of(result) == layout else torch.empty(input.shape, dtype=input.dtype, device="cpu")


def length(input: Tensor) -> int:
    """Positions of a channel."""
    return input.shape[2:].numel()

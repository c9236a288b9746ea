"""The short way of group_norm: plain CPU tensors that nobody looks at on their way.

torch.ops goes through PyTorch's dispatcher to Python and back for the operator, and once more for its derivative, which
costs a small tensor three times what computing does. What is compiled, traced, transformed, dispatched to a mode or a
subclass of Tensor goes there; everything else comes here, to the same kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from . import ops
from .check import Tensor

_PLAIN = (Tensor, torch.nn.Parameter, type(None))
_modes = torch._C._len_torch_dispatch_stack
_is_tracing = torch._C._is_tracing
_is_batched = torch._C._functorch.is_legacy_batchedtensor  # as is_grads_batched makes them
_transform = torch._C._functorch.maybe_current_level


def applies(input: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the operator would see no more than its kernel does."""
    return (
        type(input) in _PLAIN
        and type(weight) in _PLAIN
        and type(bias) in _PLAIN
        and input.is_cpu
        and not input.is_neg()
        and (weight is None or (weight.is_cpu and not weight.is_neg()))
        and (bias is None or (bias.is_cpu and not bias.is_neg()))
        and forward_ad._current_level < 0
        and not _modes()
        and not _is_tracing()
        and _transform() is None
    )


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        num_groups: int,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        activation: str | None,
    ) -> Tensor:
        output, mean, rstd = ops.group_norm(input, num_groups, weight, bias, eps, activation)
        ctx.save_for_backward(input, mean, rstd, weight, None if activation is None else bias)
        ctx.activation = activation
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        input, mean, rstd, weight, bias = ctx.saved_tensors
        needed = ctx.needs_input_grad
        mask = (needed[0], needed[2], needed[3])
        arguments = (grad_output, input, mean, rstd, weight, bias, mask, ctx.activation)
        # A graph of the gradient is the operator's affair, and so is whatever a hook made of what was saved.
        plain = applies(grad_output, None, None) and not _is_batched(grad_output)
        direct = plain and not torch.is_grad_enabled() and applies(input, weight, bias)
        operator = ops.group_norm_backward if direct else torch.ops.groupnorm.group_norm_backward
        dx, dgamma, dbeta = operator(*arguments)
        return dx, None, dgamma, dbeta, None, None


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, activation: str | None
) -> Tensor:
    """As torch.ops.groupnorm.group_norm, the output alone."""
    if torch.is_grad_enabled():
        output: Tensor = _GroupNorm.apply(input, num_groups, weight, bias, eps, activation)  # type: ignore[no-untyped-call]
        return output
    return ops.group_norm(input, num_groups, weight, bias, eps, activation)[0]

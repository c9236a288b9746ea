"""group_norm inside torch.func.grad, vjp, jvp, jacrev, jacfwd, and on the dual tensors of forward mode.

An operator that is registered from Python has a derivative in torch.autograd alone; `torch.autograd.Function` has one
there too. The operators stay the way of all other calls: they cost less, and torch.compile sees through them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from . import autograd, vmap
from .check import Tensor


class _GroupNorm(torch.autograd.Function):
    """torch.ops.groupnorm.group_norm."""

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        results: tuple[Tensor, Tensor, Tensor] = torch.ops.groupnorm.group_norm(*args)
        return results

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        input, _, weight, bias, _, activation = inputs
        _, mean, rstd = output
        ctx.mark_non_differentiable(mean, rstd)
        ctx.save_for_backward(input, mean, rstd, weight, bias)
        ctx.save_for_forward(input, mean, rstd, weight, bias)
        ctx.activation = activation

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        input, mean, rstd, weight, bias = ctx.saved_tensors
        mask = tuple(ctx.needs_input_grad[i] for i in (0, 2, 3))
        dx, dgamma, dbeta = _GroupNormBackward.apply(  # type: ignore[no-untyped-call]
            grad_output, input, mean, rstd, weight, bias, mask, ctx.activation
        )
        return dx, None, dgamma, dbeta, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, None, None]:
        input, mean, rstd, weight, bias = ctx.saved_tensors
        tangent = autograd.composite_tangent(
            input, mean, rstd, weight, bias, ctx.activation, (tangents[0], tangents[2], tangents[3])
        )
        return tangent, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return vmap.group_norm(_GroupNorm.apply, info, in_dims, *args)


class _GroupNormBackward(torch.autograd.Function):
    """torch.ops.groupnorm.group_norm_backward."""

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor | None, ...]:
        results: tuple[Tensor | None, ...] = torch.ops.groupnorm.group_norm_backward(*args)
        return results

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        autograd.setup_backward(ctx, inputs, output)
        ctx.save_for_forward(*inputs[:6])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return autograd.backward_of_backward(ctx, *grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_output, input, mean, rstd, weight, bias = ctx.saved_tensors
        given = (grad_output, input, weight, bias)
        moved = (tangents[0], tangents[1], tangents[4], tangents[5])
        found = autograd.tangents_of_backward(given, moved, mean, rstd, ctx.activation)
        return tuple(tangent if wanted else None for tangent, wanted in zip(found, ctx.mask, strict=True))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return vmap.group_norm_backward(_GroupNormBackward.apply, info, in_dims, *args)


def active(*tensors: Tensor | None) -> bool:
    """Whether a transform of torch.func or forward mode has to see the derivative of a call on these."""
    if torch._C._functorch.maybe_current_level() is not None:
        return True
    return forward_ad._current_level >= 0 and any(tensor is not None and autograd.is_dual(tensor) for tensor in tensors)


def _forward_modes() -> int:
    """How many of the active transforms are forward mode."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return sum(level.key() == torch._C._functorch.TransformType.Jvp for level in stack)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, activation: str | None
) -> Tensor:
    """As torch.ops.groupnorm.group_norm, the output alone."""
    output: Tensor
    output, mean, rstd = _GroupNorm.apply(  # type: ignore[no-untyped-call]
        input, num_groups, weight, bias, eps, activation
    )
    if _forward_modes() > 1:  # the jvp of a Function is a constant to the forward mode around it
        output = autograd.with_derivatives(output, input, mean, rstd, weight, bias, activation)
    return output

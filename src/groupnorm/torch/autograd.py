"""The derivatives of the operators.

That of group_norm is group_norm_backward. That of group_norm_backward, which a second derivative needs, is PyTorch's
of the formula written in its own operations (docs/math.md, "The gradient", "Swish"), where mean and rstd are the
statistics of input: they move with it, by mean' = 1 / M and (1 / rstd^2)' = 2 (x - mean) / M.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .check import Tensor
from .ops import LIBRARY


def _setup_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    input, _, weight, bias, _, activation = inputs
    _, mean, rstd = output
    ctx.mark_non_differentiable(mean, rstd)
    ctx.save_for_backward(input, mean, rstd, weight, None if activation is None else bias)
    ctx.activation = activation


def _backward_of_forward(ctx: Any, grad_output: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    input, mean, rstd, weight, bias = ctx.saved_tensors
    # Arguments at the end that have their defaults are not counted.
    needed = (*ctx.needs_input_grad, False, False, False)
    mask = [needed[i] for i in (0, 2, 3)]
    grads = torch.ops.groupnorm.group_norm_backward(grad_output, input, mean, rstd, weight, bias, mask, ctx.activation)
    return grads[0], None, grads[1], grads[2], None, None


def composite_backward(
    grad_output: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    activation: str | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """grad_input, grad_weight and grad_bias in PyTorch's operations, to be differentiated as often as wanted."""
    (n, channels), groups = input.shape[:2], mean.shape[1]
    compute = torch.float64 if input.dtype == torch.float64 else torch.float32
    shape = (n, groups, channels // groups, input.shape[2:].numel())
    each_group = (2, 3)

    def of_groups(statistic: Tensor) -> Tensor:
        return statistic.detach().to(compute)[:, :, None, None]

    def of_channels(parameter: Tensor) -> Tensor:
        return parameter.to(compute).reshape(1, groups, channels // groups, 1)

    def moving(value: Tensor, with_: Tensor) -> Tensor:
        return value + (with_ - with_.detach())

    x = input.to(compute).reshape(shape)
    dy = grad_output.to(compute).reshape(shape)
    centred = x - moving(of_groups(mean), x.mean(each_group, keepdim=True))
    square = centred.square().mean(each_group, keepdim=True)
    scale = moving(of_groups(rstd).square().reciprocal(), square).rsqrt()
    xhat = centred * scale
    if activation is not None:
        gn = xhat if weight is None else of_channels(weight) * xhat
        gn = gn if bias is None else gn + of_channels(bias)
        sigmoid = gn.sigmoid()
        dy = dy * sigmoid * (1 + gn * (1 - sigmoid))
    dxhat = dy if weight is None else dy * of_channels(weight)
    mean_dxhat = dxhat.mean(each_group, keepdim=True)
    mean_dxhat_xhat = (dxhat * xhat).mean(each_group, keepdim=True)
    dx = scale * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)
    parameter = mean.dtype if weight is None else weight.dtype
    return (
        dx.reshape(input.shape).to(input.dtype),
        (dy * xhat).sum((0, 3)).reshape(channels).to(parameter),
        dy.sum((0, 3)).reshape(channels).to(parameter),
    )


def _setup_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
    grad_output, input, mean, rstd, weight, bias, mask, activation = inputs
    ctx.save_for_backward(grad_output, input, mean, rstd, weight, bias)
    ctx.mask, ctx.activation = tuple(mask), activation


def _backward_of_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    grad_output, input, mean, rstd, weight, bias = ctx.saved_tensors
    given = (grad_output, input, weight, bias)
    present = [tensor for tensor in given if tensor is not None]
    asked = [i for i in range(3) if ctx.mask[i] and grads[i] is not None]

    def formula(*tensors: Tensor) -> tuple[Tensor, ...]:
        rest = iter(tensors)
        dy, x, gamma, beta = (None if tensor is None else next(rest) for tensor in given)
        assert dy is not None
        assert x is not None
        results = composite_backward(dy, x, mean, rstd, gamma, beta, ctx.activation)
        return tuple(results[i] for i in asked)

    pullback = torch.func.vjp(formula, *present)[1]
    found = iter(pullback(tuple(grads[i] for i in asked)))
    dy, dx, dgamma, dbeta = (None if tensor is None else next(found) for tensor in given)
    return dy, dx, None, None, dgamma, dbeta, None, None


def _no_derivative(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(
        "group_normalization_grad: has no derivative, since it is no gradient itself unless gamma is 1; accepted: "
        "group_norm_backward, which can be differentiated"
    )


def register() -> None:
    """Makes the derivatives known to PyTorch."""
    rules: tuple[tuple[str, Callable[..., Any], Callable[..., Any] | None], ...] = (
        ("group_norm", _backward_of_forward, _setup_forward),
        ("group_norm_backward", _backward_of_backward, _setup_backward),
        ("group_normalization_grad", _no_derivative, None),
    )
    for name, backward, setup in rules:
        torch.library.register_autograd(f"groupnorm::{name}", backward, setup_context=setup, lib=LIBRARY)

"""The derivatives of the operators.

That of group_norm is group_norm_backward. That of group_norm_backward, which a second derivative needs, is PyTorch's
of the formula written in its own operations (docs/math.md, "The gradient", "Swish"), where mean and rstd are the
statistics of input: they move with it, by mean' = 1 / M and (1 / rstd^2)' = 2 (x - mean) / M.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch._library.autograd import Info, make_autograd_impl
from torch.autograd import forward_ad

from .. import _core
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


class _Groups:
    """[N, C, *] as [N, G, D, HxW] in the dtype that is computed in, and its xhat, to be differentiated by input."""

    _EACH: Final = (2, 3)

    def __init__(self, input: Tensor, mean: Tensor, rstd: Tensor) -> None:
        (n, channels), groups = input.shape[:2], mean.shape[1]
        self.compute = torch.float64 if input.dtype == torch.float64 else torch.float32
        self.shape = (n, groups, channels // groups, input.shape[2:].numel())
        x = self.of(input)
        centred = x - self._moving(mean.detach().to(self.compute)[:, :, None, None], self.mean(x))
        variance = rstd.detach().to(self.compute)[:, :, None, None].square().reciprocal()
        self.rstd = self._moving(variance, self.mean(centred.square())).rsqrt()
        self.xhat = centred * self.rstd

    @staticmethod
    def _moving(value: Tensor, with_: Tensor) -> Tensor:
        return value + (with_ - with_.detach())

    def of(self, tensor: Tensor) -> Tensor:
        """A tensor of input's shape."""
        return tensor.to(self.compute).reshape(self.shape)

    def mean(self, tensor: Tensor) -> Tensor:
        """Of each group."""
        return tensor.mean(self._EACH, keepdim=True)

    def of_channels(self, parameter: Tensor) -> Tensor:
        """[C], beside [N, G, D, HxW]."""
        return parameter.to(self.compute).reshape(1, *self.shape[1:3], 1)

    def gn(self, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """weight * xhat + bias."""
        gn = self.xhat if weight is None else self.of_channels(weight) * self.xhat
        return gn if bias is None else gn + self.of_channels(bias)

    def slope(self, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """The derivative of SiLU at gn."""
        gn = self.gn(weight, bias)
        sigmoid = gn.sigmoid()
        return sigmoid * (1 + gn * (1 - sigmoid))


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
    groups = _Groups(input, mean, rstd)
    xhat = groups.xhat
    dy = groups.of(grad_output)
    if activation is not None:
        dy = dy * groups.slope(weight, bias)
    dxhat = dy if weight is None else dy * groups.of_channels(weight)
    dx = groups.rstd * (dxhat - groups.mean(dxhat) - xhat * groups.mean(dxhat * xhat))
    parameter = mean.dtype if weight is None else weight.dtype
    channels = input.shape[1]
    return (
        dx.reshape(input.shape).to(input.dtype),
        (dy * xhat).sum((0, 3)).reshape(channels).to(parameter),
        dy.sum((0, 3)).reshape(channels).to(parameter),
    )


def composite_tangent(
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    activation: str | None,
    moved: tuple[Tensor | None, Tensor | None, Tensor | None],
) -> Tensor:
    """How the output moves with input, weight and bias, by `moved`, in PyTorch's operations."""
    groups = _Groups(input, mean, rstd)
    dx, dgamma, dbeta = moved
    tangent = torch.zeros_like(groups.xhat)
    if dx is not None:
        centred = groups.of(dx) - groups.mean(groups.of(dx))
        tangent = groups.rstd * (centred - groups.xhat * groups.mean(centred * groups.xhat))
    if weight is not None:
        tangent = groups.of_channels(weight) * tangent
    if dgamma is not None:
        tangent = tangent + groups.of_channels(dgamma) * groups.xhat
    if dbeta is not None:
        tangent = tangent + groups.of_channels(dbeta)
    if activation is not None:
        tangent = tangent * groups.slope(weight, bias)
    return tangent.reshape(input.shape).to(input.dtype)


def with_derivatives(
    output: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    activation: str | None,
) -> Tensor:
    """The values of output, with the derivatives of the formula in PyTorch's operations."""
    gn = _Groups(input, mean, rstd).gn(weight, bias)
    moving = gn if activation is None else gn * gn.sigmoid()
    moving = moving.reshape(input.shape).to(input.dtype)
    return output.detach() + (moving - moving.detach())


def setup_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
    """What the derivative of group_norm_backward needs."""
    grad_output, input, mean, rstd, weight, bias, mask, activation = inputs
    ctx.save_for_backward(grad_output, input, mean, rstd, weight, bias)
    ctx.mask, ctx.activation = tuple(mask), activation


def _pull_back(
    formula: Callable[..., tuple[Tensor, ...]], tensors: list[Tensor], cotangents: tuple[Tensor | None, ...]
) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        # Of their own, so that one is no function of another.
        own = [each.view_as(each) if each.requires_grad else each.detach().requires_grad_() for each in tensors]
        results = formula(*own)
    return torch.autograd.grad(results, own, cotangents, create_graph=torch.is_grad_enabled(), materialize_grads=True)


def backward_of_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    """The derivative of group_norm_backward, by each of its arguments."""
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

    cotangents = tuple(grads[i] for i in asked)
    if torch._C._functorch.maybe_current_level() is not None:
        found = iter(torch.func.vjp(formula, *present)[1](cotangents))
    else:  # torch.func takes no hooks on saved tensors, as checkpointing has them
        found = iter(_pull_back(formula, present, cotangents))
    dy, dx, dgamma, dbeta = (None if tensor is None else next(found) for tensor in given)
    return dy, dx, None, None, dgamma, dbeta, None, None


def tangents_of_backward(
    given: tuple[Tensor | None, ...],
    moved: tuple[Tensor | None, ...],
    mean: Tensor,
    rstd: Tensor,
    activation: str | None,
) -> tuple[Tensor, ...]:
    """How grad_input, grad_weight and grad_bias move with grad_output, input, weight and bias (`given`, by `moved`)."""
    moving = [i for i, tangent in enumerate(moved) if tangent is not None]

    def formula(*tensors: Tensor) -> tuple[Tensor, ...]:
        now = list(given)
        for i, tensor in zip(moving, tensors, strict=True):
            now[i] = tensor
        dy, x, gamma, beta = now
        assert dy is not None
        assert x is not None
        return composite_backward(dy, x, mean, rstd, gamma, beta, activation)

    # J v as the derivative of u -> J^T u, along v: inside forward mode there is no other to be had.
    results, pullback = torch.func.vjp(formula, *(given[i] for i in moving))  # type: ignore[misc]
    push = torch.func.vjp(pullback, tuple(torch.zeros_like(result) for result in results))[1]
    found: tuple[Tensor, ...] = push(tuple(moved[i] for i in moving))[0]
    return found


def _no_derivative(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(
        "group_normalization_grad: has no derivative, since it is no gradient itself unless gamma is 1; accepted: "
        "group_norm_backward, which can be differentiated"
    )


def is_dual(tensor: Tensor) -> bool:
    """Whether it carries a tangent of forward mode."""
    if tensor.layout != torch.strided:  # nothing that forward mode knows
        return False
    # Level 0 is the only one; inside a compiled graph forward_ad does not know that it was entered.
    return forward_ad.unpack_dual(tensor, level=0).tangent is not None  # type: ignore[no-untyped-call]


def _without_tangents(name: str, kernel: Callable[..., Any], keyset: Any, *args: Any, **kwargs: Any) -> Any:
    """An operator that is registered from Python has no forward mode: PyTorch would go on without the tangents."""
    tensors = (arg for arg in args if isinstance(arg, Tensor))
    if any(is_dual(each) for each in tensors):
        raise NotImplementedError(
            f"groupnorm::{name}: forward mode of the operator; accepted: groupnorm.torch.group_norm, not compiled and "
            "not traced"
        )
    return kernel(keyset, *args, **kwargs)


def _shorter(short: Callable[..., Any], kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Without another way through the dispatcher, where below Autograd there is nothing but the kernel of the CPU."""
    nothing_else = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU) | torch._C.DispatchKeySet(
        torch._C.DispatchKey.AutogradCPU
    )

    def of_autograd(keyset: Any, *args: Any) -> Any:
        if keyset == nothing_else and forward_ad._current_level < 0:
            results = short(torch.is_grad_enabled(), False, torch.get_num_threads(), *args)
            if results is not None:
                return results
        return kernel(keyset, *args)

    return of_autograd


def register() -> None:
    """Makes the derivatives known to PyTorch."""
    rules: tuple[tuple[str, Callable[..., Any], Callable[..., Any] | None], ...] = (
        ("group_norm", _backward_of_forward, _setup_forward),
        ("group_norm_backward", backward_of_backward, setup_backward),
        ("group_normalization_grad", _no_derivative, None),
    )
    short: dict[str, Callable[..., Any]] = {
        "group_norm": _core.plain_tensors_group_norm,
        "group_norm_backward": _core.plain_tensors_group_norm_backward,
    }
    for name, backward, setup in rules:
        operator = getattr(torch.ops.groupnorm, name).default
        info = Info(backward, setup)
        kernel: Callable[..., Any] = functools.partial(_without_tangents, name, make_autograd_impl(operator, info))
        if name in short:
            kernel = _shorter(short[name], kernel)
        LIBRARY.impl(name, kernel, "Autograd", with_keyset=True)  # type: ignore[no-untyped-call]

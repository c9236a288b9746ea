"""The short way: plain CPU tensors that nobody looks at on their way.

torch.ops goes through PyTorch's dispatcher to Python and back for the operator, and once more for its derivative, which
costs a small tensor several times what computing does. What is compiled, traced, transformed, dispatched to a mode or a
subclass of Tensor goes there; everything else comes here, to the same kernels. Whether a tensor is plain is found in
C++ (csrc/python/tensor.h), through what PyTorch has for that since 2.10; with an older one nothing comes here.

Where groupnorm was built for the PyTorch that runs, the whole of it is C++, with its derivative
(csrc/torch/function.cc): Python that left the caches while convolutions ran costs a derivative some 60 microseconds.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from .. import _core
from . import ops
from .check import Tensor
from .ops import Grads


def _built() -> Callable[..., Tensor | None] | None:
    """`group_norm` of csrc/torch/function.cc; None where this was not built for this PyTorch."""
    try:
        module = importlib.import_module("._function_" + re.sub(r"\W", "_", torch.__version__), __package__)
    except ImportError:
        return None
    return module.group_norm  # type: ignore[no-any-return]


built = _built()

_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_is_tracing = torch._C._is_tracing
_transform = torch._C._functorch.maybe_current_level


_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality


def _records() -> bool:
    """Whether autograd looks: not in inference mode, nor in the kernel of someone's operator."""
    return torch.is_grad_enabled() and not _is_excluded(_AUTOGRAD)


def _unwatched() -> bool:
    """Whether no mode, trace or transform has to see what is called."""
    return (
        forward_ad._current_level < 0
        and not _modes()
        and not _function_modes()
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
        needed = ctx.needs_input_grad
        arguments = (grad_output, *ctx.saved_tensors, (needed[0], needed[2], needed[3]), ctx.activation)
        # A graph of the gradient is the operator's affair, and so is whatever a hook made of what was saved.
        grads: Grads | None = None
        if _unwatched():
            grads = _core.plain_tensors_group_norm_backward(_records(), True, torch.get_num_threads(), *arguments)
        if grads is None:
            grads = torch.ops.groupnorm.group_norm_backward(*arguments)
        return grads[0], None, grads[1], grads[2], None, None


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, activation: str | None
) -> Tensor | None:
    """As torch.ops.groupnorm.group_norm, the output alone, with its gradient; None where that has to be called."""
    if built is not None:
        output = built(input, num_groups, weight, bias, eps, activation)
        if output is not None:
            return output
    if not _unwatched():
        return None
    records = _records()
    if not (records and type(weight) is torch.nn.Parameter and weight.requires_grad):  # else this gives nothing
        results = _core.plain_tensors_group_norm(
            records, True, torch.get_num_threads(), input, num_groups, weight, bias, eps, activation
        )
        if results is not None:
            return results[0]  # type: ignore[no-any-return]
    if records and _core.plain_tensors((input, weight, bias)):
        return _GroupNorm.apply(input, num_groups, weight, bias, eps, activation)  # type: ignore[no-any-return, no-untyped-call]
    return None

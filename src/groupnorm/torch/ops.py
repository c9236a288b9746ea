"""The operators of the namespace `torch.ops.groupnorm`: schemas, CPU kernels, and what they give without memory.

    group_norm(input, num_groups, weight, bias, eps, activation) -> (output, mean, rstd)
    group_norm_backward(grad_output, input, mean, rstd, weight, bias, output_mask, activation)
        -> (grad_input, grad_weight, grad_bias), None where the mask is False
    group_normalization_grad(x, dy, gamma, mean, rstd) -> dx, the formula that CANN prints

input is [N, C, *], float64, float32, float16 or bfloat16, in any layout; weight and bias are [C] or None, mean and rstd
[N, G], in the dtype of input, or float32 beside a 16-bit one. activation is None or "silu". Results have the strides of
`torch.empty_like(input)`: its layout where it is dense. Formulas: docs/math.md. `torch.get_num_threads` decides how
many threads they use, and no bit.

Autocast: on a CPU there is no rule, as for PyTorch's own group_norm (bfloat16 beside float32 parameters is computed as
it is); on CUDA the inputs are cast to float32, as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import _core, spec
from . import check, device
from .check import ACTIVATIONS, CODES, Tensor, statistics_dtype
from .layout import address, contiguous, empty_for, in_layout, layout_of, length, optional

_core.use_torch(torch)
LIBRARY = torch.library.Library("groupnorm", "DEF")  # type: ignore[no-untyped-call]
SCHEMAS = (
    "group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-05, "
    "str? activation=None) -> (Tensor, Tensor, Tensor)",
    "group_norm_backward(Tensor grad_output, Tensor input, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, "
    "bool[3] output_mask, str? activation=None) -> (Tensor, Tensor, Tensor)",
    "group_normalization_grad(Tensor x, Tensor dy, Tensor gamma, Tensor mean, Tensor rstd) -> Tensor",
)

Grads = tuple[Tensor | None, Tensor | None, Tensor | None]


# ---- the kernels ----


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    activation: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """On CPU tensors."""
    results = _core.plain_tensors_group_norm(
        False, False, torch.get_num_threads(), input, num_groups, weight, bias, eps, activation
    )
    if results is not None:
        return results
    check.forward(input, num_groups, weight, bias, eps, activation)
    layout = layout_of(input) or spec.CONTIGUOUS
    output, written = empty_for(input, layout)
    stats = statistics_dtype(input.dtype)
    mean = torch.empty((input.shape[0], num_groups), dtype=stats, device="cpu")
    rstd = torch.empty_like(mean)
    input, weight, bias = in_layout(input, layout), optional(weight), optional(bias)
    _core.group_norm(
        CODES[input.dtype], CODES[stats if weight is None else weight.dtype],
        CODES[stats if bias is None else bias.dtype], CODES[stats], layout,
        input.shape[0], input.shape[1], length(input), num_groups,
        address(input), address(weight), address(bias), eps, ACTIVATIONS[activation], 1.0,
        written.data_ptr(), address(mean), address(rstd), torch.get_num_threads(),
    )  # fmt: skip
    if written is not output:
        output.copy_(written)
    return output, mean, rstd


def group_norm_backward(
    grad_output: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
    activation: str | None = None,
) -> Grads:
    """On CPU tensors. `bias` is that of the forward, which an activation alone needs."""
    grads = _core.plain_tensors_group_norm_backward(
        False, False, torch.get_num_threads(), grad_output, input, mean, rstd, weight, bias, output_mask, activation
    )
    if grads is not None:
        return grads
    check.backward(grad_output, input, mean, rstd, weight, bias, activation)
    layout = layout_of(input) or spec.CONTIGUOUS
    n, channels = input.shape[:2]
    parameter = mean.dtype if weight is None else weight.dtype
    grad_input, written = empty_for(input, layout) if output_mask[0] else (None, None)
    grad_weight, grad_bias = (
        torch.empty(channels, dtype=parameter, device="cpu") if wanted else None for wanted in tuple(output_mask)[1:]
    )
    grad_output, input = in_layout(grad_output, layout), in_layout(input, layout)
    mean, rstd, weight, bias = contiguous(mean), contiguous(rstd), optional(weight), optional(bias)
    _core.group_norm_backward(
        CODES[input.dtype], CODES[parameter], CODES[parameter if bias is None else bias.dtype], CODES[mean.dtype],
        layout, n, channels, length(input), mean.shape[1],
        address(grad_output), address(input), address(mean), address(rstd), address(weight), address(bias),
        address(written), address(grad_weight), address(grad_bias), False, ACTIVATIONS[activation], 1.0,
        torch.get_num_threads(),
    )  # fmt: skip
    if grad_input is not None and written is not None and written is not grad_input:
        grad_input.copy_(written)
    return grad_input, grad_weight, grad_bias


def group_normalization_grad(x: Tensor, dy: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    """On CPU tensors; dx is contiguous."""
    check.printed(x, dy, gamma, mean, rstd)
    dx = torch.empty(x.shape, dtype=x.dtype, device="cpu")
    x, dy, gamma, mean, rstd = (contiguous(tensor) for tensor in (x, dy, gamma, mean, rstd))
    _core.group_normalization_grad(
        CODES[x.dtype], x.shape[0], x.shape[1], length(x),
        address(x), address(dy), address(gamma), address(mean), address(rstd), dx.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return dx


# ---- without memory ----


def _fake_group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    activation: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    check.forward(input, num_groups, weight, bias, eps, activation)
    mean = input.new_empty((input.shape[0], num_groups), dtype=statistics_dtype(input.dtype))
    return torch.empty_like(input), mean, torch.empty_like(mean)


def _fake_group_norm_backward(
    grad_output: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
    activation: str | None = None,
) -> Grads:
    check.backward(grad_output, input, mean, rstd, weight, bias, activation)
    parameter = mean.dtype if weight is None else weight.dtype
    grad_weight, grad_bias = (
        input.new_empty((input.shape[1],), dtype=parameter) if wanted else None for wanted in tuple(output_mask)[1:]
    )
    return torch.empty_like(input) if output_mask[0] else None, grad_weight, grad_bias


def _fake_group_normalization_grad(x: Tensor, dy: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    check.printed(x, dy, gamma, mean, rstd)
    return x.new_empty(x.shape)


def _register() -> None:
    tags = (torch.Tag.pt2_compliant_tag,)
    for schema in SCHEMAS:
        LIBRARY.define(schema, tags=tags)  # type: ignore[no-untyped-call]
    for kernel, fake in (
        (group_norm, _fake_group_norm),
        (group_norm_backward, _fake_group_norm_backward),
        (group_normalization_grad, _fake_group_normalization_grad),
    ):
        name = kernel.__name__
        LIBRARY.impl(name, kernel, "CPU")  # type: ignore[no-untyped-call]
        for key in device.KEYS:
            LIBRARY.impl(name, getattr(device, name), key)  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"groupnorm::{name}", fake, lib=LIBRARY)
    torch.library.register_autocast("groupnorm::group_norm", "cuda", torch.float32, lib=LIBRARY)


_register()

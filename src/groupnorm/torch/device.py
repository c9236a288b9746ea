"""The operators on GPUs and NPUs: the same checks, then the Triton kernels of groupnorm.triton.

float64 stays on the CPU: those devices are refused it by name. PyTorch calls CUDA what is AMD's ROCm too, and
PrivateUse1 what a package of a vendor brings, of which Ascend's (torch_npu, device "npu") is known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import check
from .check import Tensor

KEYS = ("CUDA", "PrivateUse1")
_DEVICES = ("cuda", "npu")


def _launch(name: str, tensor: Tensor) -> Any:
    """groupnorm.triton.launch, or NotImplementedError that says why not."""
    device = tensor.device
    if device.type not in _DEVICES:
        raise NotImplementedError(f"groupnorm::{name}: a tensor on {device}; accepted: cpu, cuda, npu")
    try:
        from ..triton import launch
    except ImportError as error:
        raise NotImplementedError(
            f"groupnorm::{name}: a tensor on {device} without Triton ({error}); accepted: cpu, or with the extra "
            "groupnorm[triton]"
        ) from error
    return launch


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    activation: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """On tensors of a GPU or NPU."""
    launch = _launch("group_norm", input)
    check.forward(input, num_groups, weight, bias, eps, activation)
    results: tuple[Tensor, Tensor, Tensor] = launch.forward(input, num_groups, weight, bias, eps, activation=activation)
    return results


def group_norm_backward(
    grad_output: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
    activation: str | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """On tensors of a GPU or NPU."""
    launch = _launch("group_norm_backward", input)
    check.backward(grad_output, input, mean, rstd, weight, bias, activation)
    mask = tuple(output_mask)
    results: tuple[Tensor | None, Tensor | None, Tensor | None] = launch.backward(
        grad_output, input, mean, rstd, weight, beta=bias, mask=mask, activation=activation
    )
    return results


def group_normalization_grad(x: Tensor, dy: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    """On tensors of a GPU or NPU; dx is contiguous."""
    launch = _launch("group_normalization_grad", x)
    check.printed(x, dy, gamma, mean, rstd)
    dx: Tensor = launch.printed(x, dy, gamma, mean, rstd)
    return dx

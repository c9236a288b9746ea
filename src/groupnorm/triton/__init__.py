"""The operators as Triton kernels, for tensors on NVIDIA, AMD and Ascend devices: reduce, fold, apply, and all in one
where a group stays on chip.

PyTorch's operators (groupnorm.torch) come here with tensors that are on such a device. docs/triton.md has the design,
the table of launch choices, and what was run where. `TRITON_INTERPRET=1` runs the kernels on CPU tensors, slowly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

try:
    import torch
    import triton as _triton  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"groupnorm.triton: {error.name} is not installed; accepted with the extra groupnorm[triton]"
    ) from error

import numpy as np

from .. import spec
from . import launch
from .plan import CHIPS, Chip, Plan, Problem, choose

Tensor = torch.Tensor

_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype("V2"),
    torch.float64: np.dtype(np.float64),
}


class _Metadata(NamedTuple):
    """What `spec` asks of an array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)


def _metadata(name: str, tensor: Any) -> Any:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: {'None' if tensor is None else type(tensor).__name__}; accepted: a torch.Tensor")
    if tensor.dtype not in _DTYPES:
        raise TypeError(
            f"{name}: dtype {str(tensor.dtype).removeprefix('torch.')}; accepted: float32, float16, bfloat16"
        )
    return _Metadata(_DTYPES[tensor.dtype], tuple(tensor.shape))


def _activation(activation: Any, recenter: bool = False) -> None:
    if activation not in (None, "silu"):
        raise ValueError(f"activation: {activation!r}; accepted: 'silu' or None")
    spec.check_activation(None if activation is None else "swish", 1.0, recenter=recenter)


def group_norm_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    gamma: Tensor | None = None,
    *,
    beta: Tensor | None = None,
    output_mask: Sequence[bool] = (True, True, True),
    recenter: bool = False,
    activation: str | None = None,
    plan: Plan | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Operator B on a GPU or NPU: the gradient (docs/math.md, "The gradient", "Swish", "The pivot").

    Args:
        dy, x: [N, C, *], rank 2 and up, float32, float16 or bfloat16, on one device, in any layout.
        mean, rstd: [N, G], the dtype of x, or float32 when that is 16-bit.
        gamma: [C], likewise; None counts as ones.
        beta: [C], likewise; the forward's, which an activation needs; None counts as zeros.
        output_mask: which of dx, dgamma and dbeta to compute.
        recenter: take the mean of xhat away, which the rounding of `mean` left; not together with an activation.
        activation: "silu" for the gradient through it, or None.
        plan: a row of the table in the place of the one that fits (docs/triton.md).

    Returns:
        dx, in the dtype and layout of x; dgamma, dbeta [C], in that of gamma, without one of mean; None where the mask
        is False.

    Raises:
        TypeError: a dtype that is not accepted, float64 among them.
        ValueError: a shape, value or device that is not accepted.
        RuntimeError: CPU tensors, unless Triton interprets.
    """
    operands = (("dy", dy), ("x", x), ("mean", mean), ("rstd", rstd))
    spec.check_backward(
        *(_metadata(name, tensor) for name, tensor in operands),
        *(None if tensor is None else _metadata(name, tensor) for name, tensor in (("gamma", gamma), ("beta", beta))),
    )
    _activation(activation, spec.check_flag("recenter", recenter))
    mask = spec.check_output_mask(output_mask)
    return launch.backward(
        dy, x, mean, rstd, gamma, beta=beta, mask=mask, recenter=recenter, activation=activation, plan=plan
    )


def group_normalization_grad(
    x: Tensor, dy: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, *, plan: Plan | None = None
) -> Tensor:
    """Operator A on a GPU or NPU: dx of the formula that CANN prints (docs/math.md, "The printed formula"), which is
    not the gradient unless gamma is 1.

    Args:
        x, dy, gamma: [N, G, *], rank 3 to 8, one of float32, float16, bfloat16 for all operands; views are copied.
        mean, rstd: [N, G].
        plan: as in `group_norm_backward`.

    Returns:
        dx, in the shape and dtype of x, contiguous.

    Raises:
        As `group_norm_backward`.
    """
    operands = (("x", x), ("dy", dy), ("gamma", gamma), ("mean", mean), ("rstd", rstd))
    spec.check_printed(*(_metadata(name, tensor) for name, tensor in operands))
    return launch.printed(x, dy, gamma, mean, rstd, plan=plan)


def group_norm(
    x: Tensor,
    num_groups: int,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    eps: float = 1e-5,
    *,
    activation: str | None = None,
    plan: Plan | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Operator C on a GPU or NPU: the forward (docs/math.md, "The statistics", "Swish").

    Args:
        x: [N, C, *], rank 2 and up, float32, float16 or bfloat16, in any layout.
        num_groups: divides C.
        gamma, beta: [C], the dtype of x, or float32 when that is 16-bit; None counts as ones, as zeros.
        eps: finite, 0 or above.
        activation: "silu" to apply it to the result, or None.
        plan: as in `group_norm_backward`.

    Returns:
        y, in the dtype and layout of x; mean, rstd [N, G], float32.

    Raises:
        As `group_norm_backward`.
    """
    gamma_, beta_ = (None if t is None else _metadata(name, t) for name, t in (("gamma", gamma), ("beta", beta)))
    spec.check_forward(_metadata("x", x), num_groups, gamma_, beta_, eps)
    _activation(activation)
    return launch.forward(x, num_groups, gamma, beta, eps, activation=activation, plan=plan)


__all__ = [
    "CHIPS",
    "Chip",
    "Plan",
    "Problem",
    "choose",
    "group_norm",
    "group_norm_backward",
    "group_normalization_grad",
]

"""A tensor whose positions lie in several places: the stages of the operators on one part, and what goes between them.

A part is [N, C, *] with some of the positions, on a CPU, in any layout; `positions` counts those of a channel in all
parts. What goes from place to place is small and in float64: the moments of the groups ([2, N, G]) on the way forward,
the sums over positions ([2, N, C]) on the way back. Formulas: docs/math.md.
"""

from __future__ import annotations

import torch

from .. import _core, spec
from .check import ACTIVATIONS, CODES, Tensor, statistics_dtype
from .layout import address, contiguous, empty_for, in_layout, layout_of, length, optional


def moments(input: Tensor, num_groups: int) -> Tensor:
    """[2, N, G]: the mean of each group's part, and the sum of squares around it; 0 where there is no element."""
    layout = layout_of(input) or spec.CONTIGUOUS
    input = in_layout(input, layout)
    found = torch.empty((2, input.shape[0], num_groups), dtype=torch.float64, device="cpu")
    stats = CODES[statistics_dtype(input.dtype)]
    _core.group_norm_part(
        CODES[input.dtype], stats, stats, stats, layout, input.shape[0], input.shape[1], length(input), num_groups,
        address(input), 0, 0, 0, 0.0, spec.NO_ACTIVATION, 0, 0, 0, found.data_ptr(), 0, torch.get_num_threads(),
    )  # fmt: skip
    return found


def join_moments(counts: Tensor, parts: Tensor) -> Tensor:
    """Those of the whole: counts [P] are the elements of a group in each part, parts [P, 2, N, G] their moments.

    Chan, Golub and LeVeque (1983): the sums of squares add, once each is taken around the mean of the whole.
    """
    total = counts.sum()
    weights = (counts / total.clamp(min=1))[:, None, None]
    means, squares = parts[:, 0], parts[:, 1]
    # Around the first mean, so that means that are large beside their differences lose nothing.
    first = means[counts.argmax()]
    mean = first + (weights * torch.where(weights > 0, means - first, 0)).sum(0)
    apart = torch.where(weights > 0, (means - mean).square(), 0)
    return torch.stack([mean, (squares + counts[:, None, None] * apart).sum(0)])


def normalize(
    input: Tensor,
    moments: Tensor,
    positions: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    activation: str | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(output, mean, rstd) of a part, by the moments of the whole."""
    layout = layout_of(input) or spec.CONTIGUOUS
    (n, channels), groups = input.shape[:2], moments.shape[2]
    stats = statistics_dtype(input.dtype)
    given = torch.stack([moments[0], moments[1] / max(positions * (channels // groups), 1)])
    output, written = empty_for(input, layout)
    # As the core writes them, for a part that has no element.
    mean, rstd = given[0].to(stats), (1 / (given[1] + eps).sqrt()).to(stats)
    if input.numel() == 0:
        return output, mean, rstd
    input, weight, bias = in_layout(input, layout), optional(weight), optional(bias)
    _core.group_norm_part(
        CODES[input.dtype], CODES[stats if weight is None else weight.dtype],
        CODES[stats if bias is None else bias.dtype], CODES[stats], layout, n, channels, length(input), groups,
        address(input), address(weight), address(bias), given.data_ptr(), eps, ACTIVATIONS[activation],
        written.data_ptr(), address(mean), address(rstd), 0, positions, torch.get_num_threads(),
    )  # fmt: skip
    if written is not output:
        output.copy_(written)
    return output, mean, rstd


def backward(
    grad_output: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    activation: str | None,
    positions: int,
    *,
    given: Tensor | None = None,
    grad_input: bool = True,
    sums: bool = True,
) -> tuple[Tensor | None, Tensor | None]:
    """(grad_input, sums) of a part, each where it is asked for.

    sums [2, N, C] are those of dy and of dy * xhat, dy being the gradient of gn where an activation follows. With
    `given`, those of all parts, grad_input is that of the whole, else that of a part by itself.
    """
    layout = layout_of(input) or spec.CONTIGUOUS
    n, channels = input.shape[:2]
    parameter = mean.dtype if weight is None else weight.dtype
    dx, written = empty_for(input, layout) if grad_input else (None, None)
    found = torch.empty((2, n, channels), dtype=torch.float64, device="cpu") if sums else None
    grad_output, input = in_layout(grad_output, layout), in_layout(input, layout)
    mean, rstd, weight, bias = contiguous(mean), contiguous(rstd), optional(weight), optional(bias)
    _core.group_norm_backward_part(
        CODES[input.dtype], CODES[parameter], CODES[parameter if bias is None else bias.dtype], CODES[mean.dtype],
        layout, n, channels, length(input), mean.shape[1],
        address(grad_output), address(input), address(mean), address(rstd), address(weight), address(bias),
        address(given), address(written), 0, 0, address(found), ACTIVATIONS[activation], positions,
        torch.get_num_threads(),
    )  # fmt: skip
    if dx is not None and written is not None and written is not dx:
        dx.copy_(written)
    return dx, found


def grad_parameters(sums: Tensor, num_groups: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(grad_weight, grad_bias), [C], of the sums [2, N, C] of a whole batch, added in the order of the operators."""
    n, channels = sums.shape[1:]
    grad_weight, grad_bias = (torch.empty(channels, dtype=dtype, device="cpu") for _ in range(2))
    code = CODES[dtype]
    _core.group_norm_backward_part(
        spec.FLOAT64, code, code, spec.FLOAT64, spec.CONTIGUOUS, n, channels, 1, num_groups,
        0, 0, 0, 0, 0, 0, contiguous(sums).data_ptr(), 0, grad_weight.data_ptr(), grad_bias.data_ptr(), 0,
        spec.NO_ACTIVATION, 1, torch.get_num_threads(),
    )  # fmt: skip
    return grad_weight, grad_bias

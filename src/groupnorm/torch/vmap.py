"""The operators over one dimension more: it is put before the channels, since groups do not know of each other.

[B, N, C, *] with G groups is [N, B * C, *] with B * G groups, and parameters that are the same for all are repeated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .check import Tensor
from .ops import LIBRARY

Dims = tuple[int | None, ...]


def _joined(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """[N, C, *] of each -> [N, B * C, *]."""
    moved = tensor.unsqueeze(1).expand(-1, size, *tensor.shape[1:]) if dim is None else tensor.movedim(dim, 1)
    return moved.flatten(1, 2)


def _joined_parameter(tensor: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """[C] of each -> [B * C]."""
    if tensor is None:
        return None
    return (tensor.expand(size, -1) if dim is None else tensor.movedim(dim, 0)).flatten()


def _apart(tensor: Tensor, size: int) -> Tensor:
    """[N, B * C, *] -> [N, B, C, *]."""
    return tensor.reshape(tensor.shape[0], size, tensor.shape[1] // size, *tensor.shape[2:])


def _of_none(operator: Callable[..., Any], in_dims: Dims, arguments: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    """The results for no sample at all: those of one that is made up, without it."""
    dims = (*in_dims, *(None,) * (len(arguments) - len(in_dims)))
    one = (
        each if not isinstance(dim, int) else each.new_zeros([n for i, n in enumerate(each.shape) if i != dim])
        for each, dim in zip(arguments, dims, strict=True)
    )
    return tuple(None if each is None else each.new_empty((0, *each.shape)) for each in operator(*one))


def group_norm(
    operator: Callable[..., Any],
    info: Any,
    in_dims: Dims,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    activation: str | None = None,
) -> tuple[tuple[Tensor | None, ...], tuple[int, ...]]:
    """The rule of group_norm, by `operator` on one dimension less."""
    size = info.batch_size
    if size == 0:
        return _of_none(operator, in_dims, (input, num_groups, weight, bias, eps, activation)), (0, 0, 0)
    in_dims = (*in_dims, None, None)  # arguments at the end that have their defaults are not passed
    results = operator(
        _joined(input, in_dims[0], size), size * num_groups, _joined_parameter(weight, in_dims[2], size),
        _joined_parameter(bias, in_dims[3], size), eps, activation,
    )  # fmt: skip
    return tuple(_apart(result, size) for result in results), (1, 1, 1)


def group_norm_backward(
    operator: Callable[..., Any],
    info: Any,
    in_dims: Dims,
    grad_output: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
    activation: str | None = None,
) -> tuple[tuple[Tensor | None, ...], tuple[int | None, ...]]:
    """The rule of group_norm_backward, by `operator` on one dimension less."""
    size = info.batch_size
    if size == 0:
        arguments = (grad_output, input, mean, rstd, weight, bias, output_mask, activation)
        results = _of_none(operator, in_dims, arguments)
        return results, tuple(None if each is None else 0 for each in results)
    dx, dgamma, dbeta = operator(
        *(_joined(t, dim, size) for t, dim in zip((grad_output, input, mean, rstd), in_dims[:4], strict=True)),
        *(_joined_parameter(p, dim, size) for p, dim in zip((weight, bias), in_dims[4:6], strict=True)),
        output_mask, activation,
    )  # fmt: skip
    sums = (None if each is None else each.reshape(size, each.shape[0] // size) for each in (dgamma, dbeta))
    results = (None if dx is None else _apart(dx, size), *sums)
    return results, tuple(None if r is None else dim for r, dim in zip(results, (1, 0, 0), strict=True))


def _group_normalization_grad(info: Any, in_dims: Dims, *tensors: Tensor) -> tuple[Tensor, int]:
    size = info.batch_size
    if size == 0:

        def operator(*one: Tensor) -> tuple[Tensor]:
            return (torch.ops.groupnorm.group_normalization_grad(*one),)

        dx = _of_none(operator, in_dims, tensors)[0]
        assert dx is not None
        return dx, 0
    dx = torch.ops.groupnorm.group_normalization_grad(
        *(_joined(tensor, dim, size) for tensor, dim in zip(tensors, in_dims, strict=True))
    )
    return _apart(dx, size), 1


def register() -> None:
    """Makes the rules known to PyTorch."""
    for name, rule in (
        ("group_norm", functools.partial(group_norm, torch.ops.groupnorm.group_norm)),
        ("group_norm_backward", functools.partial(group_norm_backward, torch.ops.groupnorm.group_norm_backward)),
        ("group_normalization_grad", _group_normalization_grad),
    ):
        torch.library.register_vmap(f"groupnorm::{name}", rule, lib=LIBRARY)

"""The function, the module, and the swap of a model's modules."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch

from . import check, eager, transforms
from .check import ACTIVATIONS, Tensor


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    activation: str | None = None,
) -> Tensor:
    """Group Normalization, as `torch.nn.functional.group_norm`, with a gradient that is more accurate.

    Formula (docs/math.md, "The statistics"): weight * (input - mean) / sqrt(variance + eps) + bias, mean and biased
    variance of each group; with activation="silu" that times its sigmoid, in the same pass ("Swish").

    Args:
        input: [N, C, *], rank 2 and up, float64, float32, float16 or bfloat16, in any layout; on a
            GPU or NPU no float64.
        num_groups: divides C.
        weight: [C], the dtype of input, or float32 when that is 16-bit; None counts as ones.
        bias: [C], likewise; None counts as zeros.
        eps: finite.
        activation: "silu" to apply it to the result. Its gradient saves nothing more than input, mean and rstd.

    Returns:
        [N, C, *], the dtype and layout of input. One element a group gives bias, where PyTorch's function raises.

    Raises:
        TypeError: a type or dtype that is not accepted.
        ValueError: a shape, num_groups, eps or activation that is not accepted.
        NotImplementedError: a tensor on a device of another kind, or on a GPU or NPU without Triton.
    """
    arguments = (input, num_groups, weight, bias, eps, activation)
    if not torch.compiler.is_compiling():
        direct = eager.group_norm(*arguments)
        if direct is not None:
            return direct
        check.types(input, num_groups, weight, bias, eps)
        if transforms.active(input, weight, bias):
            return transforms.group_norm(*arguments)
        if isinstance(input, Tensor):  # not what stands for one while a graph is made
            check.strided(input)
    if _is_sharded(input, weight, bias):
        from . import sharded

        return sharded.group_norm(*arguments)
    output: Tensor = torch.ops.groupnorm.group_norm(*arguments)[0]
    return output


def _is_sharded(*tensors: Tensor | None) -> bool:
    """Whether one is a DTensor; without the import of what makes them, which takes a second."""
    if all(tensor is None or type(tensor) in (Tensor, torch.nn.Parameter) for tensor in tensors):
        return False
    if "torch.distributed.tensor" not in sys.modules:
        return False
    from .sharded import is_sharded

    return is_sharded(*tensors)


class GroupNorm(torch.nn.GroupNorm):
    """`torch.nn.GroupNorm` by `group_norm`: the same arguments, parameters and state_dict, and a fused activation.

    Args:
        num_groups: divides num_channels.
        num_channels: C of the input, [N, C, *].
        eps: added to the variance.
        affine: whether there are weight and bias, [C].
        device, dtype: those of the parameters.
        activation: "silu" to apply it to the result, None for the normalization alone.
        options: what else the constructor of this PyTorch's nn.GroupNorm takes by name (bias=).

    Raises:
        ValueError: num_groups that does not divide num_channels, or another activation.
    """

    # Of the class, so that modules that were made or pickled as torch.nn.GroupNorm have it.
    activation: str | None = None

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        activation: str | None = None,
        **options: Any,
    ) -> None:
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(
                f"num_groups: {num_groups} with num_channels = {num_channels}; accepted: a positive number of groups "
                "that divides num_channels"
            )
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation: {activation!r}; accepted: 'silu' or None")
        super().__init__(num_groups, num_channels, eps, affine, device, dtype, **options)
        if activation is not None:
            self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        """[N, C, *] -> [N, C, *]."""
        return group_norm(input, self.num_groups, self.weight, self.bias, self.eps, activation=self.activation)

    def extra_repr(self) -> str:
        shown: str = super().extra_repr()
        return shown if self.activation is None else f"{shown}, activation={self.activation!r}"


class Replaced(NamedTuple):
    """What `replace_group_norm` did, by names of modules ("" is the model itself)."""

    changed: list[str]
    left: list[str]  # subclasses of nn.GroupNorm, which may compute something else


def replace_group_norm(model: torch.nn.Module) -> Replaced:
    """Makes every `torch.nn.GroupNorm` of a model a `GroupNorm`, in place; no activation is fused.

    The modules stay the objects they are, and so keep parameters, buffers, hooks, names, mode and whoever refers to
    them. Modules of a class derived from nn.GroupNorm are left as they are, and named.
    """
    changed, left = [], []
    for name, module in model.named_modules():
        if type(module) is torch.nn.GroupNorm:
            module.__class__ = GroupNorm
            changed.append(name)
        elif isinstance(module, torch.nn.GroupNorm) and not isinstance(module, GroupNorm):
            left.append(name)
    return Replaced(changed, left)

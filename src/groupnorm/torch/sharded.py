"""group_norm on sharded tensors: DTensors over the batch, over channels on borders of groups, over positions.

Batch and channels need no communication on the way forward, and give the bits of one process. Positions need the
moments of the groups on the way forward (gathered, [2, N, G] each) and the sums of the channels on the way back (added,
[2, N, C]). The gradients of weight and bias take the sums of all of the batch ([2, N, C], gathered), so that they have
the bits of one process however the batch is shared out. docs/distributed.md has what that costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from . import check, parts
from .check import Tensor


@dataclass(frozen=True)
class _Axis:
    """One mesh dimension that a tensor is sharded over."""

    group: dist.ProcessGroup
    sizes: list[int]  # of the parts, in the order of the ranks


@dataclass(frozen=True)
class _Layout:
    """What the operators have to know of the other places."""

    shape: torch.Size  # of this place's part
    groups: int  # of its channels
    positions: int  # of a channel, in all places
    batch: list[_Axis]  # outermost first
    space: list[_Axis]


def _chunks(size: int, count: int) -> list[int]:
    """How DTensor cuts a dimension: parts of equal size, the last of them shorter or empty."""
    each = -(-size // count) if size else 0
    return [max(0, min(each, size - i * each)) for i in range(count)]


def _placements(input: DTensor, num_groups: int) -> tuple[Placement, ...]:
    """Those that the operators take: input's own, whole where it is a sum or a group would lie in two places."""
    mesh = input.device_mesh
    found: list[Placement] = []
    groups = num_groups
    for dim, placement in enumerate(input.placements):
        if type(placement) is not Shard:  # whole already, a sum, or a kind that is not known here
            found.append(Replicate())
            continue
        if placement.dim == 1:
            if groups % mesh.size(dim):
                found.append(Replicate())
                continue
            groups //= mesh.size(dim)
        found.append(placement)
    return tuple(found)


def _layout(input: DTensor, placements: tuple[Placement, ...], num_groups: int) -> _Layout:
    mesh = input.device_mesh
    batch: list[_Axis] = []
    space: list[_Axis] = []
    sizes = list(input.shape)
    groups = num_groups
    for dim, placement in enumerate(placements):
        if not isinstance(placement, Shard):
            continue
        cut = _chunks(sizes[placement.dim], mesh.size(dim))
        sizes[placement.dim] = cut[mesh.get_local_rank(dim)]
        if placement.dim == 1:
            groups //= mesh.size(dim)
        else:
            (batch if placement.dim == 0 else space).append(_Axis(mesh.get_group(dim), cut))
    return _Layout(torch.Size(sizes), groups, input.shape[2:].numel(), batch, space)


# ---- what goes from place to place ----


def _gather(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[P, ...] of tensors of one shape."""
    tensor = tensor.contiguous()
    found = [torch.empty_like(tensor) for _ in range(group.size())]
    dist.all_gather(found, tensor, group=group)
    return torch.stack(found)


def _gather_batch(sums: Tensor, axis: _Axis) -> Tensor:
    """[2, N, C] of all parts of the batch; they are of different lengths, so the shorter ones travel padded."""
    longest = max(axis.sizes)
    padded = sums.new_zeros((2, longest, sums.shape[2]))
    padded[:, : sums.shape[1]] = sums
    found = _gather(padded, axis.group)
    return torch.cat([part[:, :size] for part, size in zip(found, axis.sizes, strict=True)], dim=1)


def _join_over(axis: _Axis, moments: Tensor, count: int) -> tuple[Tensor, int]:
    """The moments of the groups over one mesh dimension, and how many elements they are of."""
    header = moments.new_full((1,), count)
    found = _gather(torch.cat([header, moments.flatten()]), axis.group)
    counts = found[:, 0]
    return parts.join_moments(counts, found[:, 1:].reshape(len(counts), *moments.shape)), int(counts.sum())


class _GroupNorm(torch.autograd.Function):
    """On the tensors of one place. Gradients of weight and bias are those of all places."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        layout: _Layout,
        eps: float,
        activation: str | None,
    ) -> Tensor:
        output: Tensor
        if layout.space:
            moments = parts.moments(input, layout.groups)
            count = input.shape[1] // layout.groups * input.shape[2:].numel()
            for axis in reversed(layout.space):
                moments, count = _join_over(axis, moments, count)
            output, mean, rstd = parts.normalize(input, moments, layout.positions, weight, bias, eps, activation)
        else:
            output, mean, rstd = torch.ops.groupnorm.group_norm(input, layout.groups, weight, bias, eps, activation)
        ctx.save_for_backward(input, mean, rstd, weight, bias)
        ctx.layout, ctx.activation = layout, activation
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "group_norm: a second derivative of sharded tensors; accepted: the first (no create_graph)"
            )
        input, mean, rstd, weight, bias = ctx.saved_tensors
        layout, activation = ctx.layout, ctx.activation
        wants_input, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        wants_sums = wants_weight or wants_bias
        arguments = (grad_output, input, mean, rstd, weight, bias, activation, layout.positions)
        if layout.space:
            _, sums = parts.backward(*arguments, grad_input=False)
            assert sums is not None
            for axis in layout.space:
                dist.all_reduce(sums, group=axis.group)
            dx = parts.backward(*arguments, given=sums, sums=False)[0] if wants_input else None
        else:
            dx, sums = parts.backward(*arguments, grad_input=wants_input, sums=wants_sums)
        if not wants_sums:
            return dx, None, None, None, None, None
        assert sums is not None
        for axis in reversed(layout.batch):
            sums = _gather_batch(sums, axis)
        parameter = mean.dtype if weight is None else weight.dtype
        dgamma, dbeta = parts.grad_parameters(sums, layout.groups, parameter)
        dbeta = dbeta if bias is None else dbeta.to(bias.dtype)
        return dx, dgamma if wants_weight else None, dbeta if wants_bias else None, None, None, None


def is_sharded(*tensors: Tensor | None) -> bool:
    """Whether one of them is a DTensor."""
    return any(isinstance(tensor, DTensor) for tensor in tensors)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, activation: str | None
) -> DTensor:
    """As groupnorm.torch.group_norm, on DTensors of one mesh.

    The output has input's placements, but for those that the operator cannot take: a sum (Partial), or channels that
    are not cut on borders of groups, become whole (Replicate) first. weight and bias go where the channels are.

    Raises:
        TypeError: a tensor that is not a DTensor beside one that is; else as groupnorm.torch.group_norm.
        ValueError: DTensors of different meshes; else as groupnorm.torch.group_norm.
        NotImplementedError: a mesh of another device than CPU.
    """
    for name, tensor in (("input", input), ("weight", weight), ("bias", bias)):
        if tensor is not None and not isinstance(tensor, DTensor):
            raise TypeError(
                f"{name}: a plain tensor beside DTensors; accepted: DTensors (distribute_tensor; distribute_module "
                "makes those of a module)"
            )
    assert isinstance(input, DTensor)
    check.forward(input, num_groups, weight, bias, eps, activation)
    mesh = input.device_mesh
    if mesh.device_type != "cpu":
        raise NotImplementedError(f"input: a DTensor on {mesh.device_type}; accepted: on a CPU")
    placements = _placements(input, num_groups)
    of_channels = tuple(
        Shard(0) if isinstance(placement, Shard) and placement.dim == 1 else Replicate() for placement in placements
    )

    def local(name: str, parameter: Tensor | None) -> Tensor | None:
        if parameter is None:
            return None
        assert isinstance(parameter, DTensor)
        if parameter.device_mesh != mesh:
            raise ValueError(f"{name}: a DTensor of {parameter.device_mesh}; accepted: of input's mesh, {mesh}")
        here: Tensor = parameter.redistribute(mesh, of_channels).to_local(grad_placements=of_channels)
        return here

    layout = _layout(input, placements, num_groups)
    here = input.redistribute(mesh, placements).to_local(grad_placements=placements)
    if here.shape != layout.shape:
        raise ValueError(
            f"input: a part of shape {tuple(here.shape)} here; accepted: {tuple(layout.shape)}, what DTensor gives "
            "this rank of the whole"
        )
    output = _GroupNorm.apply(  # type: ignore[no-untyped-call]
        here, local("weight", weight), local("bias", bias), layout, eps, activation
    )
    stride = torch.empty_like(torch.empty_strided(input.shape, input.stride(), device="meta")).stride()
    result: DTensor = DTensor.from_local(
        output,
        mesh,
        placements,
        run_check=False,
        shape=input.shape,
        stride=stride,
    )
    return result

"""GroupNorm on images that are shared out over processes: by sample, by channel, or by row.

Each process holds a part of every tensor. The first prints by how much the results differ from those of one process.

    torchrun --standalone --nproc-per-node 2 examples/torch_sharded.py
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

from groupnorm.torch import group_norm

SHAPE, GROUPS = (4, 64, 32, 32), 16


def gradients(x: torch.Tensor, dy: torch.Tensor, *parameters: torch.Tensor) -> list[torch.Tensor]:
    """y, dx, dgamma and dbeta of GroupNorm with its SiLU."""
    leaves = [tensor.detach().requires_grad_() for tensor in (x, *parameters)]
    y = group_norm(leaves[0], GROUPS, *leaves[1:], activation="silu")
    y.backward(dy)
    return [y.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def main() -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(SHAPE, generator=generator) for _ in range(2))
    parameters = [torch.randn(SHAPE[1], generator=generator) for _ in range(2)]
    alone = gradients(x, dy, *parameters)

    table = Table(title=f"{dist.get_world_size()} processes against one: the largest difference")
    for name in ("shared out by", "y", "dx", "dgamma", "dbeta"):
        table.add_column(name)
    kinds: dict[str, Placement] = {"sample": Shard(0), "channel": Shard(1), "row": Shard(2)}
    for name, placement in kinds.items():
        whole = [distribute_tensor(parameter, mesh, [Replicate()]) for parameter in parameters]
        sharded = (distribute_tensor(tensor, mesh, [placement]) for tensor in (x, dy))
        results = [result.full_tensor() for result in gradients(*sharded, *whole)]  # type: ignore[attr-defined]
        apart = [float((a - b).abs().max()) for a, b in zip(results, alone, strict=True)]
        table.add_row(name, *("none, to the bit" if worst == 0 else f"{worst:.1e}" for worst in apart))
    if dist.get_rank() == 0:
        Console().print(table)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

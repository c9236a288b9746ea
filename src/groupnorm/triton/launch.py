"""Tensors -> schedule -> kernels, on the stream and the device of the tensors.

A call allocates its outputs and one workspace, waits for nothing, and so can be captured into a graph.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
import triton

from . import fused, gradient
from .plan import CHIPS, Chip, Plan, Problem, choose
from .schedule import Schedule, backward

Tensor = torch.Tensor
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

KERNELS: dict[str, Any] = {
    "reduce": gradient.reduce,
    "fold": gradient.fold,
    "apply": gradient.apply,
    "fused_resident": fused.fused_resident,
    "fused_cached": fused.fused_cached,
}


@functools.cache
def chip_of(device: torch.device) -> Chip:
    """The row of the table for a device: that of its kind, with the device's own number of units."""
    if device.type == "npu":
        return CHIPS["npu:Ascend910B3"]
    if device.type == "cpu":
        return CHIPS["cuda:90"]  # the interpreter stands for the chip that the table was drawn up for
    properties = torch.cuda.get_device_properties(device)
    kind = "hip" if torch.version.hip else "cuda"
    like = CHIPS["hip:gfx942" if kind == "hip" else "cuda:90"]
    return like._replace(
        name=properties.name,
        units=properties.multi_processor_count,
        cache=getattr(properties, "L2_cache_size", 0) or like.cache,
    )


def start(schedule: Schedule, operands: dict[str, Tensor], device: torch.device) -> None:
    """Starts the steps. A part of the workspace begins at a multiple of 256 bytes."""
    sizes = {name: (count + 63) // 64 * 64 for name, count in schedule.workspace.items()}
    if sizes:
        memory = torch.empty(sum(sizes.values()), dtype=torch.float32, device=device)
        operands = {**operands, **dict(zip(sizes, memory.split(list(sizes.values())), strict=True))}
    for step in schedule.steps:
        pointers = {p: None if name is None else operands[name] for p, name in step.pointers.items()}
        options: dict[str, Any] = {} if INTERPRETED or device.type == "npu" else {"num_warps": step.warps}
        if not INTERPRETED and device.type != "npu":
            options["enable_fp_fusion"] = False
        KERNELS[step.kernel][(step.programs,)](**pointers, **step.sizes, **step.constants, **options)

"""Tensors -> schedule -> kernels, on the stream and the device of the tensors.

A call allocates its outputs and one workspace, waits for nothing, and so can be captured into a graph.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch

from . import forward as forward_kernels
from . import fused, gradient, schedule
from .arithmetic import INTERPRETED as INTERPRETED_KERNELS
from .plan import CHIPS, Chip, Plan, Problem, choose
from .schedule import Schedule

Tensor = torch.Tensor
INTERPRETED = bool(INTERPRETED_KERNELS)

KERNELS: dict[str, Any] = {
    "reduce": gradient.reduce,
    "fold": gradient.fold,
    "apply": gradient.apply,
    "fused_resident": fused.fused_resident,
    "fused_cached": fused.fused_cached,
    "forward_reduce": forward_kernels.forward_reduce,
    "forward_fold": forward_kernels.forward_fold,
    "forward_apply": forward_kernels.forward_apply,
    "forward_resident": forward_kernels.forward_resident,
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
        lanes=properties.warp_size,
        cache=getattr(properties, "L2_cache_size", 0) or like.cache,
    )


def options_of(kind: str, warps: int, lanes: int) -> dict[str, Any]:
    """What a kernel is compiled with on `cuda`, `hip` or `npu`, for `warps` of 32 threads.

    Left alone, NVIDIA's assembler spills some bytes where that lets one more program onto a multiprocessor.
    """
    if kind == "npu":
        return {}
    options: dict[str, Any] = {"num_warps": max(1, warps * 32 // lanes), "enable_fp_fusion": False}
    return options | ({"maxnreg": min(255, 65536 // (warps * 32))} if kind == "cuda" else {})


def start(steps: Schedule, operands: dict[str, Tensor | None], device: torch.device) -> None:
    """Starts the steps. A part of the workspace begins at a multiple of 256 bytes."""
    sizes = {name: (count + 63) // 64 * 64 for name, count in steps.workspace.items()}
    if sizes:
        memory = torch.empty(sum(sizes.values()), dtype=torch.float32, device=device)
        operands = {**operands, **dict(zip(sizes, torch.split(memory, list(sizes.values())), strict=True))}
    for step in steps.steps:
        pointers = {p: None if name is None else operands[name] for p, name in step.pointers.items()}
        kind = "npu" if device.type == "npu" else "hip" if torch.version.hip else "cuda"
        options = {} if INTERPRETED else options_of(kind, step.warps, chip_of(device).lanes)
        KERNELS[step.kernel][(step.programs,)](**pointers, **step.sizes, **step.constants, **options)


# ---- memory ----


def _is_last(tensor: Tensor) -> bool:
    """Whether the channels are side by side; without positions a contiguous tensor counts as that too."""
    if tensor.shape[2:].numel() == 1:
        return tensor.is_contiguous()
    return not tensor.is_contiguous() and tensor.dim() > 2 and tensor.movedim(1, -1).is_contiguous()


def _in_layout(tensor: Tensor, last: bool) -> Tensor:
    """The tensor itself where it lies so, else a copy that does."""
    if not last or tensor.dim() == 2:
        return tensor.contiguous()
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1)


def _written(result: Tensor, last: bool) -> Tensor:
    """What a kernel writes: the result where it lies so, else memory to be copied from."""
    across = result.movedim(1, -1) if last and result.dim() > 2 else result
    if across.is_contiguous():
        return result
    return _in_layout(torch.empty(result.shape, dtype=result.dtype, device=result.device), last)


def _name(tensor: Tensor | None) -> str | None:
    return None if tensor is None else str(tensor.dtype).removeprefix("torch.")


def _check_device(operands: dict[str, Tensor | None]) -> torch.device:
    """The device of all of them, where a kernel can run."""
    device = next(tensor.device for tensor in operands.values() if tensor is not None)
    for name, tensor in operands.items():
        if tensor is not None and tensor.device != device:
            raise ValueError(f"{name}: on {tensor.device}; accepted: {device}, where the others are")
        if tensor is not None and tensor.dtype == torch.float64:
            raise TypeError(f"{name}: dtype float64 on {device}; accepted: float32, float16, bfloat16")
    if device.type == "cpu" and not INTERPRETED:
        raise RuntimeError("x: on cpu; accepted: a GPU or NPU (TRITON_INTERPRET=1 runs the kernels on a CPU, slowly)")
    return device


def _guard(device: torch.device) -> Any:
    """Makes the device current, so that the kernel runs on its current stream."""
    if device.type == "cpu":
        return contextlib.nullcontext()
    return torch.npu.device(device) if device.type == "npu" else torch.cuda.device(device)  # type: ignore[attr-defined]


# ---- the operators ----


def backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    gamma: Tensor | None = None,
    *,
    beta: Tensor | None = None,
    mask: tuple[bool, bool, bool] = (True, True, True),
    recenter: bool = False,
    activation: str | None = None,
    plan: Plan | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Operator B on tensors that were checked: see `groupnorm.triton.group_norm_backward`."""
    device = _check_device({"x": x, "dy": dy, "mean": mean, "rstd": rstd, "gamma": gamma, "beta": beta})
    parameter = mean.dtype if gamma is None else gamma.dtype
    dx = torch.empty_like(x) if mask[0] else None
    dgamma, dbeta = (x.new_empty(x.shape[1], dtype=parameter) if wanted else None for wanted in mask[1:])
    if x.numel() == 0:
        return dx, None if dgamma is None else dgamma.zero_(), None if dbeta is None else dbeta.zero_()
    if not any(mask):
        return dx, dgamma, dbeta
    last = _is_last(x) and device.type != "npu"
    problem = Problem(
        "backward", x.shape[0], x.shape[1], x.shape[2:].numel(), mean.shape[1], str(_name(x)), _name(gamma),
        None if activation is None else _name(beta), str(_name(mean)), last, activation is not None, recenter, mask,
    )  # fmt: skip
    written = None if dx is None else _written(dx, last)
    operands = {
        "x": _in_layout(x, last), "dy": _in_layout(dy, last), "mean": mean.contiguous(), "rstd": rstd.contiguous(),
        "gamma": None if gamma is None else gamma.contiguous(), "beta": None if beta is None else beta.contiguous(),
        "dx": written, "dgamma": dgamma, "dbeta": dbeta,
    }  # fmt: skip
    with _guard(device):
        start(schedule.backward(problem, plan or choose(problem, chip_of(device))), operands, device)
    if dx is not None and written is not None and written is not dx:
        dx.copy_(written)
    return dx, dgamma, dbeta


def printed(x: Tensor, dy: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, *, plan: Plan | None = None) -> Tensor:
    """Operator A on tensors that were checked: see `groupnorm.triton.group_normalization_grad`."""
    device = _check_device({"x": x, "dy": dy, "gamma": gamma, "mean": mean, "rstd": rstd})
    dx = x.new_empty(x.shape)
    if x.numel() == 0:
        return dx
    n, groups = x.shape[:2]
    name = str(_name(x))
    problem = Problem(
        "printed", n, groups, x.shape[2:].numel(), groups, name, None, None, name, output_mask=(True, False, False)
    )
    operands = {
        name: t.contiguous() for name, t in (("x", x), ("dy", dy), ("gamma", gamma), ("mean", mean), ("rstd", rstd))
    }
    with _guard(device):
        start(schedule.backward(problem, plan or choose(problem, chip_of(device))), {**operands, "dx": dx}, device)
    return dx


def forward(
    x: Tensor,
    num_groups: int,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    eps: float = 1e-5,
    *,
    activation: str | None = None,
    plan: Plan | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Operator C on tensors that were checked: see `groupnorm.triton.group_norm`."""
    device = _check_device({"x": x, "gamma": gamma, "beta": beta})
    y = torch.empty_like(x)
    mean = x.new_empty((x.shape[0], num_groups), dtype=torch.float32)
    rstd = torch.empty_like(mean)
    eps = min(float(eps), 3e38)
    if x.numel() == 0:
        return y, mean.zero_(), rstd.fill_(eps**-0.5 if eps > 0 else float("inf"))
    last = _is_last(x) and device.type != "npu"
    problem = Problem(
        "forward", x.shape[0], x.shape[1], x.shape[2:].numel(), num_groups, str(_name(x)), _name(gamma), _name(beta),
        "float32", last, activation is not None,
    )  # fmt: skip
    written = _written(y, last)
    operands = {
        "x": _in_layout(x, last), "gamma": None if gamma is None else gamma.contiguous(),
        "beta": None if beta is None else beta.contiguous(), "y": written, "mean": mean, "rstd": rstd,
    }  # fmt: skip
    with _guard(device):
        start(schedule.forward(problem, plan or choose(problem, chip_of(device)), eps), operands, device)
    if written is not y:
        y.copy_(written)
    return y, mean, rstd

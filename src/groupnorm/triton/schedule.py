"""A plan as kernels to start, by names alone: what `launch` gives tensors to, and `compile` dtypes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .plan import FOLDED, Plan, Problem, power_of_two, unit

SAMPLES = 16  # terms that the fold over the batch adds side by side


class Step(NamedTuple):
    """One kernel: its name, how many programs, the operand behind each of its pointers (None where there is none), its
    sizes and its constants."""

    kernel: str
    programs: int
    pointers: dict[str, str | None]
    sizes: dict[str, int | float]
    constants: dict[str, Any]
    warps: int


class Schedule(NamedTuple):
    """The steps in order, and the float32 elements of each part of the workspace."""

    steps: tuple[Step, ...]
    workspace: dict[str, int]


def _units(problem: Problem) -> dict[str, int]:
    return {
        "UNIT_D": unit(problem.channels_per_group),
        "UNIT_C": unit(problem.channels),
        "UNIT_L": unit(problem.length),
    }


def _sizes(problem: Problem) -> dict[str, int | float]:
    units = _units(problem)
    return {
        "Q": problem.groups,
        "G": problem.num_groups,
        "D": problem.channels_per_group // units["UNIT_D"],
        "C": problem.channels // units["UNIT_C"],
        "L": problem.length // units["UNIT_L"],
        "M": problem.group_size,
    }


def _row_blocks(problem: Problem, plan: Plan) -> tuple[int, int]:
    """Blocks of channels in a sample (channels-last) or a group, and over all of them."""
    if problem.channels_last:
        blocks = math.ceil(problem.channels / plan.block_d)
        return blocks, blocks * problem.n
    blocks = math.ceil(problem.channels_per_group / plan.block_d)
    return blocks, blocks * problem.groups


def _pointers(problem: Problem, *names: str) -> dict[str, str | None]:
    absent = {
        "gamma": problem.gamma is None and problem.operator != "printed",
        "beta": problem.beta is None,
        "dx": not problem.output_mask[0],
        "dgamma": not problem.output_mask[1],
        "dbeta": not problem.output_mask[2],
        "sum_xhat": not problem.recenter,
    }
    return {f"{name}_ptr": None if absent.get(name) else name for name in names}


def backward(problem: Problem, plan: Plan) -> Schedule:
    """Operators A and B: one step where groups stay on chip and nothing is summed over a batch, else at most three."""
    printed = problem.operator == "printed"
    flags = {"LAST": problem.channels_last, "PRINTED": printed, "SILU": problem.silu}
    tile = {"BLOCK_D": plan.block_d, "BLOCK_L": plan.block_l, **_units(problem)}
    operands = ("x", "dy", "mean", "rstd", "gamma", "beta")
    rows = problem.n * problem.channels
    dx, dgamma, dbeta = problem.output_mask
    over_batch = not printed and (dgamma or dbeta)

    if plan.path != "split":
        # The sums of a single sample are its dgamma and dbeta.
        direct = problem.n == 1
        pointers = _pointers(problem, *operands, "dx")
        pointers["sum_dy_ptr"] = ("dbeta" if dbeta else None) if direct else ("sum_dy" if over_batch else None)
        pointers["sum_dy_xhat_ptr"] = (
            ("dgamma" if dgamma else None) if direct else ("sum_dy_xhat" if over_batch else None)
        )
        resident = plan.path == "resident"
        own = (
            {"RECENTER": problem.recenter, "BLOCK_G": plan.block_g}
            if resident
            else {"TILES": plan.tiles, "FOLD_D": power_of_two(problem.channels_per_group)}
        )
        step = Step(
            "fused_resident" if resident else "fused_cached", math.ceil(problem.groups / plan.block_g), pointers,
            _sizes(problem),
            {**flags, **own, **tile}, plan.warps,
        )  # fmt: skip
        if direct or not over_batch:
            return Schedule((step,), {})
        # What is summed is recentred already.
        return Schedule(
            (step, _fold(problem._replace(recenter=False), 1, groups=False)), {"sum_dy": rows, "sum_dy_xhat": rows}
        )

    chunks = plan.chunks(problem.length)
    row_blocks, blocks = _row_blocks(problem, plan)
    steps = [
        Step(
            "reduce", blocks * chunks, _pointers(problem, *operands, "sum_dy", "sum_dy_xhat", "sum_xhat"),
            {**_sizes(problem), "ROW_BLOCKS": row_blocks},
            {**flags, "RECENTER": problem.recenter, "TILES": plan.tiles, **tile}, plan.warps,
        ),
        _fold(problem, chunks, groups=dx),
    ]  # fmt: skip
    if dx:
        steps.append(
            Step(
                "apply", blocks * math.ceil(problem.length / plan.block_l),
                _pointers(problem, *operands, "high", "low", "slope", "dx"),
                {**_sizes(problem), "ROW_BLOCKS": row_blocks}, {**flags, **tile}, plan.warps,
            )
        )  # fmt: skip
    sums = {"sum_dy": rows * chunks, "sum_dy_xhat": rows * chunks}
    if problem.recenter:
        sums["sum_xhat"] = rows * chunks
    return Schedule(tuple(steps), {**sums, **dict.fromkeys(("high", "low", "slope"), problem.groups)})


def _fold(problem: Problem, chunks: int, *, groups: bool) -> Step:
    """Over the batch, and with `groups` over each group, for apply."""
    block = min(32, power_of_two(problem.channels_per_group))
    printed = problem.operator == "printed"
    over_batch = not printed and any(problem.output_mask[1:])
    programs = problem.num_groups * math.ceil(problem.channels_per_group / block) if over_batch else 0
    pointers = _pointers(
        problem, "mean", "rstd", "gamma", "sum_dy", "sum_dy_xhat", "sum_xhat", "high", "low", "slope", "dgamma", "dbeta"
    )
    first = problem.groups if groups else 0
    if not groups:
        pointers["high_ptr"] = pointers["low_ptr"] = pointers["slope_ptr"] = None
    if not over_batch:
        pointers["dgamma_ptr"] = pointers["dbeta_ptr"] = None
    sizes: dict[str, int | float] = {
        "Q": problem.groups,
        "G": problem.num_groups,
        "D": problem.channels_per_group,
        "M": problem.group_size,
        "K": chunks,
        "GROUPS": first,
    }
    return Step(
        "fold", first + programs, pointers,
        sizes,
        {
            "PRINTED": printed, "RECENTER": problem.recenter, "SAMPLES": SAMPLES,
            "FOLD_D": min(FOLDED, power_of_two(problem.channels_per_group)), "BLOCK_D": block,
        }, 1,
    )  # fmt: skip


def forward(problem: Problem, plan: Plan, eps: float) -> Schedule:
    """Operator C: one step where groups stay on chip, else three."""
    tile = {"BLOCK_D": plan.block_d, "BLOCK_L": plan.block_l, **_units(problem)}
    last = {"LAST": problem.channels_last}
    silu = {"SILU": problem.silu}
    if plan.path == "resident":
        step = Step(
            "forward_resident", math.ceil(problem.groups / plan.block_g),
            _pointers(problem, "x", "gamma", "beta", "y", "mean", "rstd"), {**_sizes(problem), "eps": eps},
            {**last, **silu, "BLOCK_G": plan.block_g, **tile}, plan.warps,
        )  # fmt: skip
        return Schedule((step,), {})
    chunks = plan.chunks(problem.length)
    row_blocks, blocks = _row_blocks(problem, plan)
    sizes = {**_sizes(problem), "ROW_BLOCKS": row_blocks}
    block = min(32, power_of_two(problem.channels_per_group))
    steps = (
        Step(
            "forward_reduce", blocks * chunks, _pointers(problem, "x", "chunk_mean", "chunk_squares"), sizes,
            {**last, "TILES": plan.tiles, **tile}, plan.warps,
        ),
        Step(
            "forward_fold", problem.groups,
            _pointers(problem, "x", "chunk_mean", "chunk_squares", "shifted", "mean", "rstd"),
            {**_sizes(problem), "K": chunks, "eps": eps},
            {**last, "CHUNK": plan.tiles * plan.block_l, "BLOCK_D": block, **_units(problem)}, 1,
        ),
        Step(
            "forward_apply", blocks * math.ceil(problem.length / plan.block_l),
            _pointers(problem, "x", "gamma", "beta", "shifted", "rstd", "y"), sizes,
            {**last, **silu, **tile}, plan.warps,
        ),
    )  # fmt: skip
    rows = problem.n * problem.channels * chunks
    return Schedule(steps, {"chunk_mean": rows, "chunk_squares": rows, "shifted": problem.groups})

"""Every variant of every kernel, as problems whose schedules have them: what tests compile, `triton-compile` shows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from .plan import Chip, Path, Plan, Problem, choose
from .schedule import Schedule, backward, forward

# x and what goes with it: all alike, or 16-bit data beside float32 parameters and statistics.
DTYPES = (
    ("float32", "float32"),
    ("float16", "float16"),
    ("bfloat16", "bfloat16"),
    ("float16", "float32"),
    ("bfloat16", "float32"),
)
# [N, C, HxW] and G: a group that a program holds, and one that it does not.
SHAPES: dict[Path, tuple[int, int, int, int]] = {
    "resident": (8, 1024, 64, 32),
    "cached": (8, 512, 4096, 32),
    "split": (8, 320, 4096, 32),
}


def name_of(problem: Problem, plan: Plan) -> str:
    """Such as `backward-bfloat16/float32-last-silu-split`."""
    dtype = problem.dtype if problem.stats == problem.dtype else f"{problem.dtype}/{problem.stats}"
    flags = ["last"] * problem.channels_last + ["silu"] * problem.silu + ["recenter"] * problem.recenter
    return "-".join([problem.operator, dtype, *flags, plan.path])


def problems(path: Path) -> Iterator[Problem]:
    """All of one path."""
    n, channels, length, groups = SHAPES[path]
    for (data, rest), last in itertools.product(DTYPES, (False, True)):
        sizes = (n, channels, length, groups, data)
        for silu in (False, True):
            beta = rest if silu else None
            yield Problem("backward", *sizes, rest, beta, rest, last, silu)
            if path != "cached":
                yield Problem("forward", *sizes, rest, rest, "float32", last, silu)
        if path != "cached":
            yield Problem("backward", *sizes, rest, None, rest, last, recenter=True)
        if data == rest and not last:
            d = channels // groups
            yield Problem(
                "printed", n, groups, d * length, groups, data, None, None, data, output_mask=(True, False, False)
            )


def schedule_of(problem: Problem, plan: Plan) -> Schedule:
    """The steps of any operator; eps is that of the default."""
    return forward(problem, plan, 1e-5) if problem.operator == "forward" else backward(problem, plan)


def variants(chip: Chip) -> Iterator[tuple[Problem, Plan, Schedule]]:
    """All of them that a chip has, with its plan."""
    for path in SHAPES:
        for problem in problems(path):
            if chip.is_npu and (path != "split" or problem.channels_last):
                continue
            plan = choose(problem, chip, path)
            yield problem, plan, schedule_of(problem, plan)

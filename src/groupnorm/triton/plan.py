"""How a problem is cut into programs: a small explicit table, from shape, dtype and device alone; no tensors here.

What decides bits (tiles, chunks, warps) follows from one sample, so that a group has the same bits in every batch;
whether it runs fused or split follows from all of them.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
FOLDED: Final = 256  # channels of a group that are added at once; cached groups have no more

Path = Literal["resident", "cached", "split"]


class Problem(NamedTuple):
    """What is asked, by metadata. x is [N, C, HxW], with `channels_last` [N, HxW, C] in memory. dtypes by name; gamma
    and beta None where there are none. The printed formula has C = G and a gamma of the shape of x."""

    operator: Literal["backward", "printed", "forward"]
    n: int
    channels: int
    length: int
    num_groups: int
    dtype: str
    gamma: str | None
    beta: str | None
    stats: str
    channels_last: bool = False
    silu: bool = False
    recenter: bool = False
    output_mask: tuple[bool, bool, bool] = (True, True, True)

    @property
    def groups(self) -> int:
        """N * G."""
        return self.n * self.num_groups

    @property
    def channels_per_group(self) -> int:
        """D."""
        return self.channels // self.num_groups

    @property
    def group_size(self) -> int:
        """M."""
        return self.channels_per_group * self.length


class Chip(NamedTuple):
    """What the table asks of a device: its compute units, what its last-level cache holds, and for models its memory
    bandwidth in bytes a second (vendors' data sheets) and registers a unit."""

    name: str
    units: int
    cache: int
    bandwidth: float
    registers: int
    max_threads: int
    tile: int = 4096  # elements of a tile of a loop
    resident: int = 8192  # elements of x that a program may hold
    lanes: int = 32  # threads of a warp; plans count in warps of 32

    @property
    def is_npu(self) -> bool:
        """Whether tiles go to a unified buffer, not to registers."""
        return self.registers == 0


MIB: Final = 2**20
CHIPS: Final = {
    "cuda:80": Chip("NVIDIA A100", 108, 40 * MIB, 2.04e12, 65536, 2048),
    "cuda:90": Chip("NVIDIA H100", 132, 50 * MIB, 3.35e12, 65536, 2048),
    "cuda:100": Chip("NVIDIA B200", 148, 126 * MIB, 8.0e12, 65536, 2048),
    "hip:gfx90a": Chip("AMD MI250X, one die", 110, 8 * MIB, 1.64e12, 131072, 2048, lanes=64),
    "hip:gfx942": Chip("AMD MI300X", 304, 256 * MIB, 5.3e12, 131072, 2048, lanes=64),
    "hip:gfx1100": Chip("AMD RX 7900 XTX", 96, 96 * MIB, 0.96e12, 98304, 1024),
    "npu:Ascend910B3": Chip("Ascend 910B3", 40, 192 * MIB, 1.6e12, 0, 0, tile=2048, resident=0),
}


def chip_like(target: str) -> Chip:
    """The row of CHIPS for a target, or that of the newest one before it of the same kind."""
    if target in CHIPS:
        return CHIPS[target]
    kind = target.partition(":")[0]
    alike = [name for name in CHIPS if name.startswith(f"{kind}:")]
    if not alike:
        raise ValueError(f"target: {target!r}; accepted: {', '.join(CHIPS)}, or others of their kinds")
    if kind == "cuda":
        older = [name for name in alike if int(name[5:]) <= int(target[5:])]
        return CHIPS[max(older or alike, key=lambda name: int(name[5:]) * (1 if older else -1))]
    return CHIPS[
        "hip:gfx1100"
        if target.startswith(("hip:gfx10", "hip:gfx11", "hip:gfx12"))
        else alike[-1 if kind == "npu" else 1]
    ]


class Plan(NamedTuple):
    """The choice. A tile is [block_g * block_d channels, block_l positions]; a chunk is `tiles` of them in a row."""

    path: Path
    block_g: int
    block_d: int
    block_l: int
    tiles: int
    warps: int

    def chunks(self, length: int) -> int:
        """K: chunks of a channel."""
        return math.ceil(length / (self.tiles * self.block_l))


def power_of_two(count: int) -> int:
    """The smallest power of two that is not below `count`."""
    return 1 << max(count - 1, 0).bit_length()


def unit(count: int) -> int:
    """The largest power of two up to 16 that divides `count`: what a compiler may count on."""
    return math.gcd(count, 16)


def _warps(elements: int, per_warp: int, most: int) -> int:
    return max(1, min(most, elements // per_warp))


def choose(problem: Problem, chip: Chip, path: Path | None = None) -> Plan:
    """The row of the table (docs/triton.md) that a problem falls into; `path` forces one."""
    d, length = problem.channels_per_group, problem.length
    last = problem.channels_last
    size = BYTES[problem.dtype]
    whole = power_of_two(d) * power_of_two(length)
    if last and problem.channels * min(power_of_two(length), chip.resident) >= 2**31:
        whole = chip.resident + 1  # offsets within a tile are 32-bit
    if path == "resident" and whole > chip.resident:
        raise ValueError(f"path: 'resident' for groups of {d} channels of {length}; accepted: 'cached', 'split'")
    if chip.is_npu and (path not in (None, "split") or last):
        raise ValueError(
            f"{problem.operator} on {chip.name}, path {path!r}, channels-last {last}; accepted: 'split', contiguous: "
            "what triton-ascend 3.2 lowers"
        )
    if whole <= chip.resident and path in (None, "resident") and not chip.is_npu:
        # Small groups share a program, so that its lanes have work and it reads whole sectors.
        together = max(1, 1024 // whole)
        if path or not last or length == 1 or together * d * size >= 32:
            elements = together * whole
            # Tiles of few elements a group carry two floats each (`FEW_ELEMENTS`): half as many a thread.
            warps = _warps(elements, 256 if whole <= 128 else 512, 16)
            return Plan("resident", together, power_of_two(d), power_of_two(length), 1, warps)
    sectors = not last or d * size >= 64  # a group's own channels fill the sectors that are read
    if last:
        block_d = min(power_of_two(d if sectors else problem.channels), 64)
        block_l = min(power_of_two(length), chip.tile // block_d, max(1, 2**30 // power_of_two(problem.channels)))
    else:
        block_l = min(power_of_two(length), chip.tile)
        block_d = min(power_of_two(d), chip.tile // block_l)
    # A chunk is so much that one sample gives each unit two of them, up to 8 tiles.
    sample = problem.channels * length
    tiles = power_of_two(max(1, min(8, sample // (block_d * block_l * 2 * chip.units))))
    warps = _warps(block_d * block_l, 512, 8)
    tile = Plan("split", 1, block_d, block_l, tiles, warps)
    running = min(problem.groups, 2 * chip.units)
    operands = 3 if problem.operator == "printed" else 2
    in_cache = running * problem.group_size * size * operands <= 0.6 * chip.cache
    fills = problem.groups >= chip.units
    able = problem.operator != "forward" and not problem.recenter and d <= FOLDED
    if path == "cached" and not able:
        raise ValueError(
            f"path: 'cached' for {problem.operator}, recenter {problem.recenter}, groups of {d} channels; accepted: "
            f"'resident', 'split', and 'cached' for a gradient without recenter in groups of at most {FOLDED} channels"
        )
    if path == "cached" or (path is None and able and fills and in_cache and sectors and not chip.is_npu):
        block_d = min(block_d, power_of_two(d))
        return tile._replace(path="cached", block_d=block_d, warps=_warps(block_d * block_l, 512, 8))
    return tile


def traffic(problem: Problem, plan: Plan) -> int:
    """Bytes that a call has to move between memory and chip, workspace included."""
    x = problem.n * problem.channels * problem.length * BYTES[problem.dtype]
    dx = problem.output_mask[0]
    reads = {"backward": 2, "printed": 3, "forward": 1}[problem.operator]
    passes = 2 if plan.path == "split" and dx else 1
    sums = 0
    if problem.operator != "printed" or plan.path == "split":
        rows = 3 if problem.recenter or problem.operator == "forward" else 2
        written = rows * 4 * problem.n * problem.channels
        sums = 2 * written * plan.chunks(problem.length) if plan.path == "split" else 2 * written
    return x * (reads * passes + (1 if dx else 0)) + sums


def modelled_seconds(problem: Problem, plan: Plan, chip: Chip) -> float:
    """The traffic at the bandwidth of the chip's data sheet: a limit, not a measurement."""
    return traffic(problem, plan) / chip.bandwidth


def tensors_moved(problem: Problem, plan: Plan) -> float:
    """The traffic in sizes of x."""
    return traffic(problem, plan) / (problem.n * problem.channels * problem.length * BYTES[problem.dtype])

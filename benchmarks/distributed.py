"""What sharding GroupNorm costs, on 8 to 1024 ranks: simulated from measured times of one.

Measured here: forward and gradient of one rank's share, on one thread. Modelled: a collective among P ranks takes
ceil(log2 P) messages at the network's latency, and what a rank receives at its bandwidth (docs/distributed.md has the
bytes). Writes benchmarks/results/distributed.json and distributed.png.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import matplotlib
import torch
from rich.progress import track

from groupnorm.machine import cpu_name
from groupnorm.torch import parts

RESULT = Path(__file__).parent / "results" / "distributed.json"
RANKS = (1, 8, 16, 32, 64, 128, 256, 512, 1024)
KINDS = ("batch", "channels", "positions")
DOUBLE = 8


class Layer(NamedTuple):
    """Of all ranks together."""

    name: str
    n: int
    channels: int
    height: int
    width: int
    groups: int


LAYERS = (Layer("U-Net, 320 channels", 1024, 320, 64, 64, 32), Layer("video VAE, 128 channels", 8, 128, 1024, 512, 32))


def share(layer: Layer, kind: str, ranks: int) -> Layer | None:
    """What one rank has; None where there is not enough to share out."""
    dimension = {"batch": layer.n, "channels": layer.groups, "positions": layer.height}[kind]
    if dimension % ranks:
        return None
    if kind == "batch":
        return layer._replace(n=layer.n // ranks)
    if kind == "channels":
        return layer._replace(channels=layer.channels // ranks, groups=layer.groups // ranks)
    return layer._replace(height=layer.height // ranks)


def received(layer: Layer, kind: str, ranks: int) -> list[int]:
    """Bytes that one rank receives, of each collective of a forward and its gradient."""
    others = ranks - 1
    if ranks == 1 or kind == "channels":
        return []
    if kind == "batch":  # all-gather of the sums of the channels
        return [2 * DOUBLE * layer.n * layer.channels * others // ranks]
    # all-gather of moments and a count, all-reduce of the sums of the channels
    sums = 2 * DOUBLE * layer.n * layer.channels
    return [(2 * DOUBLE * layer.n * layer.groups + DOUBLE) * others, 2 * sums * others // ranks]


def median_seconds(function: Callable[[], object], budget: float) -> float:
    """Of one call."""
    function()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < budget and len(times) < 100):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def compute_seconds(part: Layer, positions: int, staged: bool, budget: float) -> float:
    """Forward and gradient of one rank's share; of a large batch 8 samples, which do not know of each other."""
    n = min(part.n, 8)
    x, dy = (torch.randn(n, part.channels, part.height, part.width) for _ in range(2))
    weight = torch.ones(part.channels)

    def whole() -> None:
        _, mean, rstd = torch.ops.groupnorm.group_norm(x, part.groups, weight, weight)
        parts.backward(dy, x, mean, rstd, weight, weight, None, positions)

    def stages() -> None:
        moments = parts.moments(x, part.groups)
        _, mean, rstd = parts.normalize(x, moments, positions, weight, weight, 1e-5, None)
        arguments = (dy, x, mean, rstd, weight, weight, None, positions)
        _, sums = parts.backward(*arguments, grad_input=False)
        parts.backward(*arguments, given=sums, sums=False)

    return median_seconds(stages if staged else whole, budget) * part.n / n


def simulate(layer: Layer, latency: float, bandwidth: float, budget: float) -> list[dict[str, object]]:
    """A row for each kind and number of ranks."""
    rows: list[dict[str, object]] = []
    for kind in KINDS:
        for ranks in RANKS:
            part = share(layer, kind, ranks)
            if part is None:
                continue
            staged = kind == "positions" and ranks > 1
            compute = compute_seconds(part, layer.height * layer.width, staged, budget)
            collectives = received(layer, kind, ranks)
            rounds = math.ceil(math.log2(ranks))
            talk = sum(rounds * latency + size / bandwidth for size in collectives)
            moved = 4 * 5 * part.n * part.channels * part.height * part.width  # x, y; x, dy, dx
            rows.append(
                {
                    "layer": layer.name, "kind": kind, "ranks": ranks, "compute_s": compute, "communicate_s": talk,
                    "bytes_received": sum(collectives), "bytes_computed": moved,
                }
            )  # fmt: skip
    return rows


def draw(rows: list[dict[str, object]], path: Path) -> None:
    """Speed-up over one rank, against the number of ranks."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(LAYERS), figsize=(11, 4.5), sharey=True, layout="constrained")
    for axis, layer in zip(axes, LAYERS, strict=True):
        axis.plot(RANKS, RANKS, color="0.7", linewidth=1, label="ideal")
        for kind in KINDS:
            of_kind = [row for row in rows if row["layer"] == layer.name and row["kind"] == kind]
            total = [float(row["compute_s"]) + float(row["communicate_s"]) for row in of_kind]  # type: ignore[arg-type]
            axis.plot([row["ranks"] for row in of_kind], [total[0] / each for each in total], marker="o", label=kind)
        axis.set(xscale="log", yscale="log", title=f"{layer.name}, batch {layer.n}", xlabel="ranks")
        axis.set_xticks(RANKS, [str(rank) for rank in RANKS])
        axis.legend()
    axes[0].set_ylabel("times as fast as one rank (simulated)")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", type=float, default=1e-5, help="of a message, in seconds (default: 1e-5)")
    parser.add_argument("--bandwidth", type=float, default=12.5e9, help="of a rank, in bytes/s (default: 12.5e9)")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds of each measurement (default: 1)")
    parser.add_argument("--json", type=Path, default=RESULT, help=f"where the result goes (default: {RESULT.name})")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        row
        for layer in track(LAYERS, "layers")
        for row in simulate(layer, arguments.latency, arguments.bandwidth, arguments.budget)
    ]
    result = {
        "machine": f"{cpu_name()}, one thread as one rank",
        "date": datetime.date.today().isoformat(),
        "latency_s": arguments.latency,
        "bandwidth_bytes_per_s": arguments.bandwidth,
        "rows": rows,
    }
    arguments.json.write_text(json.dumps(result, indent=1) + os.linesep)
    draw(rows, arguments.json.with_suffix(".png"))
    for row in rows:
        print({key: f"{value:.3g}" if isinstance(value, float) else value for key, value in row.items()})


if __name__ == "__main__":
    main()

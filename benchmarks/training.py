"""A training step of a GroupNorm-heavy stack of U-Net blocks: torch.nn.GroupNorm against groupnorm.torch.

Both have the same parameters and see the same batch; a second model of torch.nn.GroupNorm shows what two equal models
differ by here. Steps take turns, each first as often as the others; medians are compared. The share of GroupNorm's
backward in a step comes from PyTorch's profiler, in steps of their own. Writes benchmarks/results/training.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import time
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from groupnorm.machine import cpu_name
from groupnorm.torch import GroupNorm, replace_group_norm

RESULT = Path(__file__).parent / "results" / "training.json"
BACKWARD = ("aten::native_group_norm_backward", "groupnorm::group_norm_backward")
SETUPS = [
    (layout, dtype, fused)
    for layout in ("contiguous", "channels-last")
    for dtype in ("float32", "bfloat16 autocast")
    for fused in (False, True)
]


class Block(nn.Module):
    """The residual block of a diffusion U-Net: GroupNorm, SiLU, convolution, twice."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.GroupNorm(groups, channels) for _ in range(2))
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.act1, self.act2 = nn.SiLU(), nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, C, H, W] -> [N, C, H, W]."""
        return x + self.conv2(self.act2(self.norm2(self.conv1(self.act1(self.norm1(x))))))


def network(ours: bool, fused: bool) -> nn.Module:
    """Down, in the middle, and up again; with our GroupNorm also with the SiLU that follows in it."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), Block(64, 32), nn.Conv2d(64, 128, 3, stride=2, padding=1), Block(128, 32),
        Block(128, 32), nn.Upsample(scale_factor=2), nn.Conv2d(128, 64, 3, padding=1), Block(64, 32),
        nn.GroupNorm(32, 64), nn.SiLU(), nn.Conv2d(64, 3, 3, padding=1),
    )  # fmt: skip
    if ours:
        replace_group_norm(model)
    if ours and fused:
        for block in (module for module in model.modules() if isinstance(module, Block)):
            for norm in (block.norm1, block.norm2):
                assert isinstance(norm, GroupNorm)
                norm.activation = "silu"
            block.act1 = block.act2 = nn.Identity()
        model[8].activation, model[9] = "silu", nn.Identity()
    return model


class Step:
    """One training step of one model."""

    def __init__(self, ours: bool, layout: str, dtype: str, fused: bool, size: int) -> None:
        self.model = network(ours, fused)
        format_ = torch.channels_last if layout == "channels-last" else torch.contiguous_format
        self.model = self.model.to(memory_format=format_)
        self.x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1)).to(memory_format=format_)
        self.autocast = dtype != "float32"
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def __call__(self) -> float:
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            loss = (self.model(self.x) - self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        return float(loss)


def share(step: Step) -> float:
    """Of the time of a step, in GroupNorm's backward."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        step()
    events = found.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    return sum(event.cpu_time_total for event in events if event.key in BACKWARD) / total


def measure(layout: str, dtype: str, fused: bool, size: int, steps: int) -> dict[str, object]:
    """All models in turn."""
    models = {
        name: Step(name == "groupnorm", layout, dtype, fused, size) for name in ("torch", "groupnorm", "torch again")
    }
    losses = {name: [step(), step()][-1] for name, step in models.items()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    names = list(models)
    for i in range(steps):
        for name in names[i % 3 :] + names[: i % 3]:
            started = time.perf_counter()
            models[name]()
            seconds[name].append(time.perf_counter() - started)

    def ratio(name: str) -> float:
        return statistics.median(theirs / its for theirs, its in zip(seconds["torch"], seconds[name], strict=True))

    return {
        "layout": layout,
        "dtype": dtype,
        "fused": fused,
        "milliseconds": {name: 1e3 * statistics.median(times) for name, times in seconds.items()},
        "ratio": ratio("groupnorm"),
        "ratio_of_equals": ratio("torch again"),
        "share": {name: statistics.median(share(models[name]) for _ in range(3)) for name in ("torch", "groupnorm")},
        "loss": losses,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=45, help="of each model and setup (default: 45)")
    parser.add_argument("--size", type=int, default=64, help="height and width of the images (default: 64)")
    parser.add_argument("--json", type=Path, default=RESULT, help=f"where the result goes (default: {RESULT.name})")
    arguments = parser.parse_args()
    rows = []
    for setup in SETUPS:
        row = measure(*setup, arguments.size, arguments.steps)
        rows.append(row)
        print(
            f"{setup}: {row['milliseconds']}, ratio {row['ratio']:.3f} (equals {row['ratio_of_equals']:.3f}), "
            f"share {row['share']}"
        )
    result = {
        "machine": f"{cpu_name()}, {os.cpu_count()} CPUs",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "command": f"python benchmarks/training.py --steps {arguments.steps} --size {arguments.size}",
        "rows": rows,
    }
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

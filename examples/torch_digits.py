"""A network with GroupNorm trained on scikit-learn's digits, twice: with torch.nn.GroupNorm, and with ours.

Both begin with the same parameters and see the same batches. Printed: the last loss, the accuracy on digits that were
not trained on, and the median time of a step; drawn: both losses over the steps.

    python examples/torch_digits.py [--steps N] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import matplotlib
import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import nn

from groupnorm.torch import replace_group_norm

BATCH, WIDTH, GROUPS = 64, 32, 8


class Run(NamedTuple):
    """What one training gave."""

    losses: list[float]
    accuracy: float
    seconds: float  # of a step, in the median


def network() -> nn.Module:
    """Three convolutions, each with a GroupNorm of its own."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for channels in (1, WIDTH, WIDTH):
        layers += [nn.Conv2d(channels, WIDTH, 3, padding=1), nn.GroupNorm(GROUPS, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 8 * WIDTH, 10))


def train(model: nn.Module, steps: int) -> Run:
    """The same batches in the same order for every model."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float()[:, None] / 16
    labels = torch.from_numpy(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    kept, held = order[:1500], order[1500:]
    batches = torch.Generator().manual_seed(2)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses, seconds = [], []
    for _ in range(steps):
        batch = kept[torch.randint(len(kept), (BATCH,), generator=batches)]
        started = time.perf_counter()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - started)
        losses.append(loss.item())
    with torch.no_grad():
        accuracy = (model(images[held]).argmax(1) == labels[held]).float().mean().item()
    return Run(losses, accuracy, statistics.median(seconds))


def draw(runs: dict[str, Run], path: Path) -> None:
    """The losses of the steps, one over the other, and how far they are apart."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(
        2, 1, sharex=True, figsize=(8, 6), height_ratios=(2, 1), layout="constrained"
    )
    for (name, run), style in zip(runs.items(), ("-", "--"), strict=True):
        above.plot(run.losses, style, label=name)
    theirs, ours = (run.losses for run in runs.values())
    below.semilogy([max(abs(a - b), 1e-9) for a, b in zip(theirs, ours, strict=True)])
    above.set_ylabel("loss")
    above.legend()
    below.set_ylabel("apart by")
    below.set_xlabel("step")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="steps of training (default: 300)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the picture (default: out)")
    arguments = parser.parse_args()

    ours = network()
    changed = replace_group_norm(ours).changed
    runs = {
        "torch.nn.GroupNorm": train(network(), arguments.steps),
        "groupnorm.torch.GroupNorm": train(ours, arguments.steps),
    }
    table = Table(title=f"digits, {arguments.steps} steps; replaced: {', '.join(changed)}")
    for heading in ("GroupNorm", "last loss", "accuracy", "step"):
        table.add_column(heading, no_wrap=True)
    for name, run in runs.items():
        table.add_row(name, f"{run.losses[-1]:.5f}", f"{run.accuracy:.1%}", f"{run.seconds * 1e3:.2f} ms")
    console = Console()
    console.print(table)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "torch_digits.png"
    draw(runs, path)
    console.print(f"picture: {path}")


if __name__ == "__main__":
    main()

"""The gradient through a GroupNorm layer over two photographs: both operators, checked and drawn.

A bank of 32 filters turns the photographs that scikit-learn ships into activations x. They pass a GroupNorm
layer of 8 groups, a ReLU, and a linear head fitted to paint the photograph again; the loss is the mean
squared error of that painting. Its gradient at the layer's output is dy.

    python examples/photographs.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import matplotlib
import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_sample_images

import groupnorm
from groupnorm import reference, tolerance
from groupnorm.cases import uniform

CHANNELS, GROUPS = 32, 8


def photographs() -> np.ndarray:
    """Two photographs, [2, 3, 212, 320], values in [0, 1]."""
    images = np.stack([image[:424, :640] for image in load_sample_images().images])
    halved = images.reshape(2, 212, 2, 320, 2, 3).mean((2, 4)) / 255
    return np.ascontiguousarray(np.moveaxis(halved, -1, 1))


def filtered(images: np.ndarray) -> np.ndarray:
    """Activations of a layer of 3x3 filters, [2, CHANNELS, 212, 320], float32."""
    filters = uniform((CHANNELS, 3 * 9), 1)
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    height, width = images.shape[2:]
    windows = [padded[:, :, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    x = np.einsum("kc,nchw->nkhw", filters, np.concatenate(windows, axis=1), optimize=True)
    return x.astype(np.float32)


def upstream_gradient(y: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Gradient of the mean squared error of head(relu(y)) at y, for the head that fits best."""
    active = np.maximum(y, 0)
    features = np.moveaxis(active, 1, -1).reshape(-1, CHANNELS).astype(np.float64)
    target = np.moveaxis(images, 1, -1).reshape(-1, 3)
    head, *_ = np.linalg.lstsq(features[::7], target[::7], rcond=None)
    error = (features @ head - target) * (2 / target.size)
    gradient = (error @ head.T).reshape(y.shape[0], *y.shape[2:], CHANNELS)
    scaled = np.moveaxis(gradient, -1, 1) * target.size  # the loss summed, not averaged: figures of order 1
    return np.ascontiguousarray(np.where(y > 0, scaled, 0), dtype=np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the picture (default: out)")
    arguments = parser.parse_args()

    images = photographs()
    x = filtered(images)
    gamma = (1 + 0.5 * uniform((CHANNELS,), 2)).astype(np.float32)
    beta = (0.1 * uniform((CHANNELS,), 3)).astype(np.float32)
    y, mean, rstd = groupnorm.group_norm(x, GROUPS, gamma, beta)
    dy = upstream_gradient(y, images)

    shape = (x.shape[0], GROUPS, CHANNELS // GROUPS, *x.shape[2:])
    wide = np.ascontiguousarray(np.broadcast_to(gamma[:, None, None], x.shape)).reshape(shape)
    grouped = (x.reshape(shape), dy.reshape(shape), wide, mean, rstd)

    started = time.perf_counter()
    true = groupnorm.group_norm_backward(dy, x, mean, rstd, gamma)
    halfway = time.perf_counter()
    printed = groupnorm.group_normalization_grad(*grouped).reshape(x.shape)
    finished = time.perf_counter()
    gap = groupnorm.formula_gap(*grouped)

    truth = reference.group_norm_backward(dy, x, mean, rstd, gamma)
    rows = [
        ("group_norm_backward", "dx", true.dx, truth.dx, halfway - started),
        ("", "dgamma", true.dgamma, truth.dgamma, None),
        ("", "dbeta", true.dbeta, truth.dbeta, None),
        (
            "group_normalization_grad",
            "dx",
            printed,
            reference.group_normalization_grad(*grouped).reshape(x.shape),
            finished - halfway,
        ),
    ]
    table = Table(title=f"GroupNorm over photographs: x {'x'.join(map(str, x.shape))} float32, {GROUPS} groups")
    for heading in ("operator", "output", "first", "largest", "error", "time"):
        table.add_column(heading, no_wrap=True)
    passed = True
    for operator, name, result, expected, seconds in rows:
        error = np.abs(result - expected).max() / np.abs(expected).max()
        passed = passed and bool(error <= tolerance.CONTRACT[name])
        table.add_row(
            operator,
            name,
            " ".join(f"{value:.3g}" for value in result.ravel()[:1]),
            f"{np.abs(result).max():.4g}",
            f"{error:.1e}",
            "" if seconds is None else f"{seconds * 1e3:.0f} ms",
        )
    console = Console()
    console.print(table)
    console.print(
        f"The printed formula is off the gradient by {gap.rms_abs:.2g} where the gradient is "
        f"{gap.rms_abs / gap.rms_rel:.2g} (RMS over all elements): {gap.rms_rel:.1%}."
    )
    allowed = ", ".join(f"{bound:g} for {name}" for name, bound in tolerance.CONTRACT.items())
    console.print(f"Check against the float64 reference: {'passed' if passed else 'FAILED'} (allowed: {allowed}).")

    arguments.out.mkdir(parents=True, exist_ok=True)
    picture = arguments.out / "photographs.png"
    draw(picture, images, dy, printed, true.dx)
    console.print(f"Picture: {picture}", soft_wrap=True)
    raise SystemExit(0 if passed else 1)


def draw(path: Path, images: np.ndarray, dy: np.ndarray, printed: np.ndarray, true: np.ndarray) -> None:
    """Input, dy, dx of both operators and their difference, one row a photograph: RMS over the channels."""
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    titles = ["input", "dy", "dx, printed formula", "dx, gradient", "their difference, own scale"]
    figure, axes = plt.subplots(2, len(titles), figsize=(16, 5), layout="constrained")
    for n in range(2):
        maps = [np.sqrt((a[n].astype(np.float64) ** 2).mean(0)) for a in (dy, printed, true, printed - true)]
        both = np.percentile(np.concatenate(maps[1:3]), 99.5)
        tops = (np.percentile(maps[0], 99.5), both, both, np.percentile(maps[3], 99.5))
        axes[n, 0].imshow(np.moveaxis(images[n], 0, -1))
        for axis, values, top in zip(axes[n, 1:], maps, tops, strict=True):
            image = axis.imshow(values, vmin=0, vmax=top, cmap="magma")
            figure.colorbar(image, ax=axis, shrink=0.8)
        for axis in axes[n]:
            axis.set_xticks([])
            axis.set_yticks([])
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title)
    figure.suptitle("Gradients through GroupNorm, RMS over the channels")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()

"""A result as pictures: the share of the limit and the rivals of each row, and how cost grows."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from . import growth, result
from .measure import Row

_OURS, _LIMIT = "tab:blue", "0.5"


def _pyplot() -> Any:
    importlib.import_module("matplotlib").use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def _label(row: Row) -> str:
    return f"{row['case']}, {row['dtype']}, {row['layout']}, {row['operator']}"


def draw(found: result.Result, path: Path) -> None:
    """The rows with the most threads: left how much of the limit they reach, right the times of rivals in ours."""
    plt = _pyplot()
    threads = max(row["threads"] for row in found["rows"])
    rows = [row for row in found["rows"] if row["threads"] == threads]
    height = max(3.0, 0.22 * len(rows) + 1.5)
    figure, (left, right) = plt.subplots(1, 2, figsize=(15, height), sharey=True, layout="constrained")
    places = range(len(rows))

    left.barh(places, [1 / result.share_of_limit(row) for row in rows], color=_OURS)
    left.axvline(1, color=_LIMIT)
    left.set_yticks(places, [_label(row) for row in rows], fontsize=7)
    left.invert_yaxis()
    left.margins(y=0.01)
    left.set_xlabel("share of the limit that memory sets (1: as fast as memory allows)")
    left.set_title(f"outputs given, {threads} threads, {found['machine']}")

    rivals = [name for name in found["rivals"] if any(name in row["ms"] for row in rows)]
    thickness = 0.8 / max(1, len(rivals))
    for k, name in enumerate(rivals):
        at = [(i, result.against(row, name, "given")) for i, row in enumerate(rows)]
        known = [(i - 0.4 + (k + 0.5) * thickness, ratio) for i, ratio in at if ratio is not None]
        right.barh([i for i, _ in known], [r - 1 for _, r in known], thickness, left=1, label=name)
    right.axvline(1, color=_LIMIT)
    if rivals:
        right.set_xscale("log")
        right.legend(loc="lower right", fontsize=8)
    right.set_xlabel("time of a rival / time of ours (right of 1: ours is faster)")
    right.set_title(f"malloc: {found['malloc']}, {found['date']}")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_growth(found: result.Result, path: Path) -> None:
    """Time against N, C, HxW and threads."""
    plt = _pyplot()
    axes = (*growth.AXES, "threads")
    figure, panels = plt.subplots(1, len(axes), figsize=(16, 4), layout="constrained")
    for panel, axis in zip(panels, axes, strict=True):
        rows = [row for row in found["growth"] if row["axis"] == axis]
        values = [row["value"] for row in rows]
        names = ["ours", *dict.fromkeys(name for row in rows for name in row["ms"] if name != "ours")]
        for name in names:
            known = [(value, result.median(row, name)) for value, row in zip(values, rows, strict=True)]
            pairs = [(value, ms) for value, ms in known if ms is not None]
            panel.plot(*zip(*pairs, strict=True), marker="o", markersize=3, label=name)
        panel.plot(values, [row["limit"]["ms"] for row in rows], color=_LIMIT, linestyle="--", label="limit")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xlabel(axis)
    panels[0].set_ylabel("ms")
    panels[0].legend(fontsize=8)
    figure.suptitle(f"backward, float32, contiguous; {found['machine']}, {found['date']}", fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)

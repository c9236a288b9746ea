"""The report as one page: data and pictures in it, no network, no library."""

from __future__ import annotations

import html
import json
from importlib.resources import files
from typing import Any

import numpy as np

import groupnorm

from .result import Result, error_map, to_json
from .scan import to_float64
from .source import Pair

_CELLS = 64  # of the heat map, each way; more are gathered, the worst of each kept
_POINTS = 1500


def render(results: list[Result], pairs: list[Pair]) -> str:
    """The page as text."""
    data = {
        "version": groupnorm.__version__,
        "results": [_of_result(result, pair) for result, pair in zip(results, pairs, strict=True)],
    }
    template = (files("groupnorm.compare") / "page.html").read_text(encoding="utf-8")
    # </script> in a name must not end the script.
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    title = html.escape(f"groupnorm compare: {', '.join(r.name for r in results[:3])}")
    return template.replace("@TITLE@", title).replace("@DATA@", text)


def _of_result(result: Result, pair: Pair) -> dict[str, Any]:
    found = to_json(result)
    found.pop("largest_error_by_group", None)
    found.pop("largest_error_by_channel", None)
    found["map"] = _heat_map(result)
    found["points"] = _points(result, pair)
    return found


def _finite(value: float) -> Any:
    return float(value) if np.isfinite(value) else str(float(value))


def _heat_map(result: Result) -> dict[str, Any] | None:
    table = error_map(result)
    if table is None:
        return None
    rows, row_edges = _gathered(table["largest"], 0)
    cells, column_edges = _gathered(rows, 1)
    bad_rows, _ = _gathered(table["bad"], 0, np.add)
    bad, _ = _gathered(bad_rows, 1, np.add)
    return {
        "cells": [[_finite(v) for v in row] for row in cells],
        "bad": bad.tolist(),
        "n": row_edges,
        "g": column_edges,
    }


def _gathered(table: Any, axis: int, how: Any = np.maximum) -> tuple[Any, list[list[int]]]:
    """At most `_CELLS` along an axis, each with the range that it stands for."""
    count = table.shape[axis]
    starts = np.unique(np.linspace(0, count, min(count, _CELLS), endpoint=False).astype(np.int64))
    stops = [*starts[1:].tolist(), count]
    edges = [[int(a), int(b) - 1] for a, b in zip(starts, stops, strict=True)]
    return how.reduceat(table, starts, axis=axis), edges


def _points(result: Result, pair: Pair) -> list[list[float]]:
    """Got against golden: elements evenly over the array in short runs, and the worst."""
    size, run = pair.golden.size, 16
    count = min(_POINTS // run, -(-size // run))
    found = []
    for start in np.linspace(0, max(0, size - run), count).astype(np.int64).tolist():
        stop = min(start + run, size)
        got, golden = (to_float64(side.read(start, stop)) for side in (pair.got, pair.golden))
        found += [[g, w] for g, w in zip(golden.tolist(), got.tolist(), strict=True)]
    found += [[w["golden"], w["got"]] for w in result.worst]
    return [point for point in found if np.isfinite(point).all()]

"""What a run leaves: rows with their conditions, and the ratios that follow from them."""

from __future__ import annotations

import datetime
import math
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np

import groupnorm

from .. import _core, machine
from .measure import Row
from .setups import IN_CACHE_BYTES

Result = dict[str, Any]

# Elements below which the core stays on one thread, however many it may have (csrc/core/plan.cc).
_SERIAL_ELEMENTS: Final = 32 * 1024

SELECTIONS: Final[dict[str, Callable[[Row], bool]]] = {
    "all": lambda row: True,
    "backward, float32, contiguous": lambda row: (
        (row["operator"], row["dtype"], row["layout"]) == ("backward", "float32", "contiguous")
    ),
    "channels-last, 16-bit, D < 16": lambda row: (
        row["layout"] == "channels-last" and row["dtype"] != "float32" and row["channels_per_group"] < 16
    ),
    "x of 1 MiB and less": lambda row: row["x_bytes"] <= IN_CACHE_BYTES,
}


def malloc_setting() -> str:
    """What decides whether a large output is fresh memory each time."""
    names = [name for name in os.environ if name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD")]
    return ", ".join(f"{name}={os.environ[name]}" for name in sorted(names)) or "glibc's defaults"


def conditions(command: str) -> Result:
    """The machine, what else it does now, the build and the settings of this process."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": command,
        "machine": f"{machine.cpu_name()}, {len(os.sched_getaffinity(0))} CPUs, {platform.system()}",
        "caches": machine.caches()._asdict(),
        "isa": _core.current_isa(),
        "versions": {
            "groupnorm": groupnorm.__version__,
            "build": _core.BUILD,
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "malloc": malloc_setting(),
        "load": os.getloadavg()[0],
    }


def median(row: Row, name: str, policy: str | None = None) -> float | None:
    """Milliseconds of a contestant: under one policy, or the fastest of those it has."""
    policies = row["ms"].get(name, {})
    if policy is not None:
        policies = {key: value for key, value in policies.items() if key == policy}
    return min((float(figures["median"]) for figures in policies.values()), default=None)


def share_of_limit(row: Row) -> float:
    """The time of ours, outputs given, in units of the limit."""
    return float(row["ms"]["ours"]["given"]["median"]) / float(row["limit"]["ms"])


def against(row: Row, rival: str, policy: str) -> float | None:
    """How many times as long as ours a rival takes.

    "given": whichever way it is faster, against ours with outputs given; "allocating": both allocating.
    """
    ours = median(row, "ours", policy)
    theirs = median(row, rival, None if policy == "given" else policy)
    return None if theirs is None or ours is None else theirs / ours


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of those that there are."""
    known = [value for value in values if value is not None]
    return statistics.geometric_mean(known) if known else None


def _rivals(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row["ms"] if name != "ours"))


def summary(rows: list[Row]) -> list[Result]:
    """Geometric means over the selections, for each number of threads."""
    found = []
    for selection, chosen in SELECTIONS.items():
        for threads in sorted({row["threads"] for row in rows}):
            some = [row for row in rows if row["threads"] == threads and chosen(row)]
            if not some:
                continue
            found.append({
                "selection": selection,
                "threads": threads,
                "rows": len(some),
                "ours / limit": geometric_mean(share_of_limit(row) for row in some),
                "rivals / ours": {
                    name: {
                        "rows": sum(name in row["ms"] for row in some),
                        **{
                            policy: geometric_mean(against(row, name, policy) for row in some)
                            for policy in ("given", "allocating")
                        },
                    }
                    for name in _rivals(some)
                },
            })  # fmt: skip
    return found


def scaling(rows: list[Row], last_cache: int) -> Result | None:
    """How many times as fast all threads are as one, where all tensors fit the last cache and threads are used."""
    times: dict[tuple[str, ...], dict[int, float]] = {}
    for row in rows:
        if row["tensor_bytes"] > last_cache or math.prod(row["shape"]) < _SERIAL_ELEMENTS:
            continue
        key = (row["case"], row["dtype"], row["layout"], row["operator"])
        times.setdefault(key, {})[row["threads"]] = row["ms"]["ours"]["given"]["median"]
    most = max((row["threads"] for row in rows), default=1)
    ratios = [of[1] / of[most] for of in times.values() if 1 in of and most in of and most > 1]
    return {"threads": most, "rows": len(ratios), "speedup": geometric_mean(ratios)} if ratios else None


def complete(
    before: Result, rows: list[Row], rounds: int, versions: Mapping[str, str], missing: Mapping[str, str]
) -> Result:
    """Everything that is stored; `before` are the conditions when the run began."""
    found = dict(before)
    found["rounds"] = rounds
    found["rivals"] = dict(versions)
    found["missing"] = dict(missing)
    found["summary"] = summary(rows)
    found["scaling"] = scaling(rows, found["caches"]["last"])
    found["rows"] = rows
    return found

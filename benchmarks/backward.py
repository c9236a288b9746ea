"""Times group_norm_backward and its rivals in one run and stores the figures as JSON.

Per case: ours and torch's, outputs given and allocating, and a triad (read x and dy, write dx) as the limit that
memory sets. Rounds are interleaved; a figure is the median over the rounds.

    python benchmarks/backward.py [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress

import groupnorm
from groupnorm import _core
from groupnorm.cases import LAYERS, Case
from groupnorm.cli.doctor import cpu_name

CASES = [
    *((case, "float32", "contiguous") for case in LAYERS),
    *((case, "bfloat16", "contiguous") for case in LAYERS[:1] + LAYERS[4:5]),
    *((case, "float16", "contiguous") for case in LAYERS[:1]),
    *((case, "float32", "channels_last") for case in LAYERS[:1] + LAYERS[4:5]),
    (Case("rank2_4096", (4096, 1024), 32), "float32", "contiguous"),
    (Case("tiny", (1, 4, 2, 2), 2), "float32", "contiguous"),
]


def _milliseconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3


def _contestants(case: Case, dtype: str, layout: str) -> dict[str, Callable[[], object]]:
    kind = getattr(torch, dtype)
    form = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    x, dy = (torch.randn(case.shape).to(kind).contiguous(memory_format=form) for _ in range(2))
    n, c, groups = *case.shape[:2], case.num_groups
    length = x[:1, :1].numel()
    gamma = torch.randn(c) if kind != torch.float32 else torch.randn(c, dtype=kind)
    _, mean, rstd = torch.native_group_norm(x, gamma, None, n, c, length, groups, 1e-5)
    mean, rstd = mean.float(), rstd.float()
    dx = torch.empty_like(x)

    def as_numpy(tensor: torch.Tensor) -> np.ndarray:
        return tensor.view(torch.int16).numpy().view("V2") if tensor.dtype == torch.bfloat16 else tensor.numpy()

    arrays = [as_numpy(tensor) for tensor in (dy, x, mean, rstd, gamma)]
    out = (as_numpy(dx), np.empty(c, np.float32), np.empty(c, np.float32))
    native = torch.ops.aten.native_group_norm_backward
    mask = [True, True, True]
    results = (torch.empty_like(x), torch.empty(c), torch.empty(c))
    return {
        "ours": lambda: groupnorm.group_norm_backward(*arrays, out=out),
        "ours allocating": lambda: groupnorm.group_norm_backward(*arrays),
        "torch": lambda: native.out(
            dy, x, mean, rstd, gamma, n, c, length, groups, mask, out0=results[0], out1=results[1], out2=results[2]
        ),
        "torch allocating": lambda: native(dy, x, mean, rstd, gamma, n, c, length, groups, mask),
        "triad": lambda: torch.add(x, dy, out=dx),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "backward.json")
    arguments = parser.parse_args()
    torch.manual_seed(1)

    rows = []
    with Progress() as progress:
        for case, dtype, layout in progress.track(CASES, description="cases"):
            contestants = _contestants(case, dtype, layout)
            repeat = 1 if np.prod(case.shape) > 1e5 else 200
            times: dict[str, list[float]] = {name: [] for name in contestants}
            for call in contestants.values():
                call()
            for _ in range(arguments.rounds):
                for name, call in contestants.items():
                    times[name].append(statistics.fmean(_milliseconds(call) for _ in range(repeat)))
            medians = {name: statistics.median(values) for name, values in times.items()}
            rows.append({"case": case.name, "shape": case.shape, "num_groups": case.num_groups, "dtype": dtype,
                         "layout": layout, "ms": medians})  # fmt: skip

    result = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": f"python benchmarks/backward.py --rounds {arguments.rounds}",
        "machine": f"{cpu_name()}, {len(os.sched_getaffinity(0))} CPUs, {platform.system()}",
        "threads": {"ours": groupnorm.get_num_threads(), "torch": torch.get_num_threads()},
        "isa": _core.current_isa(),
        "versions": {"groupnorm": groupnorm.__version__, "torch": torch.__version__, "numpy": np.__version__,
                     "python": platform.python_version(), "build": _core.BUILD},
        "malloc": {k: v for k, v in os.environ.items() if k.startswith("MALLOC_")} or "glibc's defaults",
        "rows": rows,
    }  # fmt: skip
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

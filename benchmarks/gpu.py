"""The Triton kernels on a GPU: right against float64, then timed against PyTorch, torch.compile and a copy of memory.

    python benchmarks/gpu.py --json gpu.json --plot gpu.png          # on a GPU, under four minutes
    TRITON_INTERPRET=1 python benchmarks/gpu.py --correctness        # the first half, anywhere

Medians of CUDA events around single calls, caches flushed before each. What a call has to move is three tensors of the
size of x; `of_copy` is the share of the copy's bandwidth that it reaches at that. `slower` is PyTorch's time over ours.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import time
from pathlib import Path

import numpy as np
import torch
import triton

import groupnorm
import groupnorm.triton as gt
from groupnorm import cases, reference, tolerance
from groupnorm.triton.launch import INTERPRETED, chip_of

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
TIMED = ("sd_unet_320x64", "sd_unet_640x32", "sd_unet_1280x16", "sd_unet_1280x8", "sd_vae_128x256", "video_vae_128",
         "resnet_gn_64x56", "resnet_gn_256x56", "resnet_gn_1024x14", "segmentation_3d_32x64", "rank2_4096")  # fmt: skip


def tensor(array, device):
    array = np.ascontiguousarray(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16).to(device)
    return torch.from_numpy(array.copy()).to(device)


def correctness(device):
    """The share of the derived bounds that errors reach, at most, for each dtype: below 1 is right."""
    found = {}
    shapes = cases.SMALL[:8] if INTERPRETED else (*cases.SMALL, cases.Case("long", (1, 8, 32, 64, 64), 2))
    for name in DTYPES:
        worst = 0.0
        for case in shapes:
            for family in ("centred", "offset_10000", "pixels"):
                inputs = cases.make(case, name, family=family)
                arguments = (inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)
                truth = reference.group_norm_backward(*arguments)
                bounds = tolerance.backward_bounds(*arguments, truth)
                for last in (False, True):
                    given = [tensor(a, device) for a in arguments]
                    if last and len(case.shape) > 2:
                        given[:2] = [t.movedim(1, -1).contiguous().movedim(-1, 1) for t in given[:2]]
                    for got, expected, bound in zip(gt.group_norm_backward(*given), truth, bounds, strict=True):
                        error = np.abs(got.double().cpu().contiguous().numpy() - expected)
                        worst = max(worst, float((error / bound).max()))
                a = cases.grouped(inputs)
                arguments = (a.x, a.dy, a.gamma, a.mean, a.rstd)
                expected = reference.group_normalization_grad(*arguments)
                got = gt.group_normalization_grad(*(tensor(t, device) for t in arguments)).double().cpu().numpy()
                inside = np.isfinite(tolerance.round_to(expected, a.x.dtype))
                bound = tolerance.printed_bound(*arguments, expected)
                worst = max(worst, float((np.abs(got - expected) / bound)[inside].max()))
        found[name] = worst
    return found


def median_ms(call, flush, budget_s=1.0):
    """The median of single calls by events; the cache is overwritten before each."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    times, end = [], time.monotonic() + budget_s
    while len(times) < 100 and (time.monotonic() < end or len(times) < 5):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flush.zero_()
        first.record()
        call()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last))
    return statistics.median(times)


def timed(case, name, device, flush):
    """One row: ours, PyTorch's, torch.compile's, a copy of x."""
    dtype, groups = DTYPES[name], case.num_groups
    generator = torch.Generator(device).manual_seed(1)
    x, dy = (torch.randn(case.shape, device=device, dtype=dtype, generator=generator) for _ in range(2))
    gamma = torch.ones(case.shape[1], device=device, dtype=dtype)
    _, mean, rstd = gt.group_norm(x, groups, gamma, gamma)
    mean, rstd = mean.to(dtype), rstd.to(dtype)
    n, channels, length = case.shape[0], case.shape[1], x.shape[2:].numel()
    output = torch.empty_like(x)

    def eager():
        sizes = (n, channels, length, groups)
        return torch.ops.aten.native_group_norm_backward(dy, x, mean, rstd, gamma, *sizes, [True] * 3)

    compiled = torch.compile(eager)
    problem = gt.Problem("backward", n, channels, length, groups, name, name, None, name)
    row = {
        "case": case.name, "dtype": name, "path": gt.choose(problem, chip_of(x.device)).path,
        "ours_ms": median_ms(lambda: gt.group_norm_backward(dy, x, mean, rstd, gamma), flush),
        "torch_ms": median_ms(eager, flush), "compile_ms": median_ms(compiled, flush),
        "copy_ms": median_ms(lambda: output.copy_(x), flush),
    }  # fmt: skip
    row["of_copy"] = 1.5 * row["copy_ms"] / row["ours_ms"]  # three tensors against the copy's two
    row["slower"] = row["torch_ms"] / row["ours_ms"]
    return row


def draw(rows, file):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 0.28 * len(rows) + 1.5))
    names = [f"{row['case']} {row['dtype']} {row['path']}" for row in rows]
    axes.barh(names, [row["of_copy"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("share of the copy's bandwidth at three tensors moved")
    figure.tight_layout()
    figure.savefig(file, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--correctness", action="store_true", help="the first half only")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--budget", type=float, default=200.0, help="seconds for the timings")
    options = parser.parse_args()
    if not INTERPRETED and not torch.cuda.is_available():
        parser.error("no GPU here; accepted: TRITON_INTERPRET=1 with --correctness")
    device = "cpu" if INTERPRETED else "cuda"
    result = {
        "date": datetime.date.today().isoformat(),
        "device": "interpreter" if INTERPRETED else torch.cuda.get_device_name(),
        "versions": {"groupnorm": groupnorm.__version__, "torch": torch.__version__, "triton": triton.__version__,
                     "python": platform.python_version()},
        "share_of_bounds": correctness(device), "rows": [],
    }  # fmt: skip
    print(json.dumps(result["share_of_bounds"]))
    right = all(share <= 1 for share in result["share_of_bounds"].values())
    if right and not options.correctness and not INTERPRETED:
        flush = torch.empty(2**28, dtype=torch.int8, device=device)
        end = time.monotonic() + options.budget
        for case in cases.LAYERS:
            for name in DTYPES:
                if case.name in TIMED and time.monotonic() < end:
                    row = timed(case, name, device, flush)
                    result["rows"].append(row)
                    print(json.dumps(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.plot and result["rows"]:
        draw(result["rows"], options.plot)
    raise SystemExit(0 if right else "an error exceeds its bound")


if __name__ == "__main__":
    main()

"""The Triton kernels compiled for devices that are not here, read from their code; the table of plans and its model.

Compiling is left to processes of their own: in that of the tests the kernels belong to the interpreter. `make
test-triton` compiles every variant for every target, which takes minutes (GROUPNORM_TRITON_ALL=1).
"""

import json
import os
import subprocess
import sys

import pytest

from groupnorm import cases
from triton_interpreted import gt, interpreter, torch  # noqa: F401

TARGETS = [target for target, chip in gt.CHIPS.items() if not chip.is_npu]
SCRIPT = """
import json, sys
from groupnorm.triton import CHIPS, compile, variants

name, chosen = sys.argv[1], set(sys.argv[2:])
target, chip, seen = compile.target_of(name), CHIPS[name], set()
for problem, plan, schedule in variants.variants(chip):
    label = variants.name_of(problem, plan)
    if chosen and label not in chosen:
        continue
    for step in schedule.steps:
        key = repr((step.kernel, step.constants, step.pointers, problem.dtype, problem.stats, problem.gamma))
        if key not in seen:
            seen.add(key)
            report = compile.report(compile.compile_step(step, problem, target), step, target, chip)
            print(json.dumps({"variant": label, "dtype": problem.dtype} | report._asdict()))
"""
SOME = (
    "backward-float32-resident",
    "backward-bfloat16/float32-silu-resident",
    "backward-float32-cached",
    "backward-bfloat16/float32-last-silu-split",
    "backward-float16-last-cached",
    "printed-float16-split",
    "forward-float32-split",
)


def compiled(target, *chosen):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, target, *chosen], env=environment, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_compile_without_spills_and_load_and_store_128_bits_at_once(target):
    every = os.environ.get("GROUPNORM_TRITON_ALL") == "1"
    reports = compiled(target, *(() if every else SOME))
    assert len(reports) >= 10
    for report in reports:
        assert report["spills"] == 0, report
        assert report["occupancy"] > 0, report
        if "fold" not in report["kernel"]:
            assert report["load_bits"] >= 128, report
        if report["kernel"] in ("apply", "fused_resident", "fused_cached", "forward_apply", "forward_resident"):
            assert report["store_bits"] >= 128, report


def test_pointers_that_are_not_aligned_have_a_path():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = "from groupnorm.cli import main; main()"
    options = ("--json", "--unaligned", "--shape", "2,64,7,7")
    command = [sys.executable, "-c", script, "triton-compile", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (row, *_) = [json.loads(line) for line in done.stdout.splitlines()]
    assert row["load_bits"] <= 16
    assert row["spills"] == 0


def problem_of(case, dtype="float32", last=False, n=None):
    length = 1
    for size in case.shape[2:]:
        length *= size
    samples = case.shape[0] if n is None else n
    return gt.Problem(
        "backward", samples, case.shape[1], length, case.num_groups, dtype, "float32", None, "float32", last
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_modelled_traffic_is_three_tensors_fused_and_five_split(target, dtype):
    from groupnorm.triton.plan import tensors_moved

    chip = gt.CHIPS[target]
    for case in cases.LAYERS:
        for last in (False, True):
            problem = problem_of(case, dtype, last)
            if problem.length < 196:
                continue  # sums of channels, [N, C], count beside short channels
            plan = gt.choose(problem, chip)
            most = 5 if plan.path == "split" else 3
            # What reduce leaves of a chunk is 16 bytes written and read, of at least 50 positions.
            assert most <= tensors_moved(problem, plan) <= most + 0.17, (case, plan)


@pytest.mark.parametrize("mask", [(True, True, True), (True, False, False), (False, True, True)])
def test_launches_are_one_fused_without_a_batch_and_three_at_most(mask):
    from groupnorm.triton.schedule import backward

    for case in cases.LAYERS:
        for n in (1, 8):
            problem = problem_of(case, n=n)._replace(output_mask=mask)
            plan = gt.choose(problem, gt.CHIPS["cuda:90"])
            launches = len(backward(problem, plan).steps)
            if plan.path == "split":
                assert launches <= 3
            else:
                assert launches == (2 if n > 1 and any(mask[1:]) else 1)


def test_one_sample_fills_the_chip_and_tiles_do_not_follow_from_the_batch():
    from groupnorm.triton.schedule import backward

    chip = gt.CHIPS["cuda:90"]
    for name in ("sd_unet_320x64", "sd_vae_128x256", "video_vae_128"):
        case = next(case for case in cases.LAYERS if case.name == name)
        one, many = (gt.choose(problem_of(case, n=n), chip) for n in (1, 64))
        assert one[1:] == many[1:]
        assert one.path == "split"
        assert backward(problem_of(case, n=1), one).steps[0].programs >= chip.units


def test_offsets_are_64_bit():
    import triton
    import triton.language as tl

    global rows_of, tile_of  # a kernel finds functions among the globals
    from groupnorm.triton.arithmetic import rows_of, tile_of

    @triton.jit
    def offsets_of(out, block, first, Q, G, D, C, L, LAST: tl.constexpr):
        _, _, _, offset, valid = rows_of(block, 0, Q, G, D, C, L, LAST, False, 1, 2)
        offsets, _ = tile_of(offset, valid, first, L, C, LAST, 4)
        tl.store(out + tl.arange(0, 2)[:, None] * 4 + tl.arange(0, 4)[None, :], offsets)

    out = torch.zeros(2, 4, dtype=torch.int64)
    length, first = 2**33, 2**32 + 8
    offsets_of[(1,)](out, 5, first, 8, 4, 2, 8, length, False)
    assert out.tolist() == [[(10 + d) * length + first + i for i in range(4)] for d in range(2)]
    offsets_of[(1,)](out, 5, first, 8, 4, 2, 8, length, True)
    assert out.tolist() == [[8 * length + 2 + d + (first + i) * 8 for i in range(4)] for d in range(2)]

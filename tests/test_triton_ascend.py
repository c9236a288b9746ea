"""The Triton kernels through triton-ascend to Linalg and through AscendNPU-IR, without an NPU: `make test-ascend`.

The Linalg is also compiled for this CPU (linalg_on_cpu.py) and its results held against float64. Of AscendNPU-IR the
last step, CANN's closed assembler, is not there: a stand-in of its name copies its input, so that the exit code tells
of everything before it, on-chip memory planning included.
"""

import os
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import pytest

try:
    distribution("triton-ascend")
except PackageNotFoundError:
    pytest.skip("triton-ascend is not installed: `make test-ascend` installs it", allow_module_level=True)

import linalg_on_cpu
from groupnorm import cases, reference, spec, tolerance
from groupnorm.cases import Case
from groupnorm.triton import CHIPS, Problem, choose, compile, schedule, variants
from groupnorm.triton.launch import KERNELS

NPU = "npu:Ascend910B3"
STAND_IN = """#!/bin/sh
while [ $# -gt 0 ]; do
  if [ "$1" = -o ]; then out="$2"; shift; elif [ -f "$1" ]; then in="$1"; fi
  shift
done
[ -n "$in" ] && cp "$in" "$out"
"""


@pytest.fixture(autouse=True)
def assembler(tmp_path, monkeypatch):
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "hivmc").write_text(STAND_IN)
    (tools / "hivmc").chmod(0o755)
    files = distribution("ascendnpu-ir").files
    compiler = next(Path(f.locate()) for f in files if f.name == "bishengir-compile")
    monkeypatch.setenv("PATH", f"{tools}:{compiler.parent}:{os.environ['PATH']}")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_variant_lowers_and_fits_the_unified_buffer(dtype, tmp_path):
    target, seen = compile.target_of(NPU), 0
    for problem, plan, steps in variants.variants(CHIPS[NPU]):
        if problem.dtype != dtype:
            continue
        for step in steps.steps:
            linalg = compile.linalg_of(step, problem, target)
            assert "linalg." in linalg, (variants.name_of(problem, plan), step.kernel)
            folder = tmp_path / str(seen)
            folder.mkdir()
            assert "hivm" in compile.through_npu_compiler(linalg, target, folder)
            seen += 1
    assert seen >= 12


def test_a_tile_too_large_for_the_unified_buffer_is_refused(tmp_path):
    target = compile.target_of(NPU)
    problem, plan, _ = next(iter(variants.variants(CHIPS[NPU])))
    step = variants.schedule_of(problem, plan._replace(block_l=65536)).steps[0]
    with pytest.raises(RuntimeError, match="ub overflow"):
        compile.through_npu_compiler(compile.linalg_of(step, problem, target), target, tmp_path)


# ---- the Linalg, run on this CPU ----


def name(array):
    return None if array is None else spec.dtype_name(array.dtype)


def run(steps, problem, operands, folder):
    """All steps, each lowered to Linalg and compiled for this CPU; `operands` are flat and written in place."""
    linalg_on_cpu.require_tools()
    operands = operands | linalg_on_cpu.workspace(steps)
    for step in steps.steps:
        linalg = compile.linalg_of(step, problem, compile.target_of(NPU))
        below = folder / step.kernel
        below.mkdir(parents=True)
        function = linalg_on_cpu.compiled(linalg, step.kernel, below)
        linalg_on_cpu.run_step(function, step, KERNELS[step.kernel].arg_names, operands)


def flat(array):
    return np.ascontiguousarray(array).reshape(-1).copy()


def unwritten(shape, dtype):
    return np.full(shape, np.nan, np.float32).astype(dtype).reshape(-1)


def backward(inputs, folder, *, beta=None, recenter=False, break_it=False):
    """dx, dgamma, dbeta of the kernels of operator B."""
    n, channels, *rest = inputs.x.shape
    dtype, parameter, stats = name(inputs.x), name(inputs.gamma), name(inputs.mean)
    problem = Problem(
        "backward", n, channels, int(np.prod(rest)), inputs.mean.shape[1], dtype, parameter, name(beta), stats,
        silu=beta is not None, recenter=recenter,
    )  # fmt: skip
    operands = {field: flat(array) for field, array in inputs._asdict().items()}
    operands |= {"beta": None if beta is None else flat(beta), "dx": unwritten(inputs.x.size, inputs.x.dtype)}
    operands |= {field: unwritten(channels, inputs.gamma.dtype) for field in ("dgamma", "dbeta")}
    steps = schedule.backward(problem, choose(problem, CHIPS[NPU]))
    if break_it:
        (last,) = (step for step in steps.steps if step.kernel == "fold")
        last.sizes["M"] += 1
    run(steps, problem, operands, folder)
    return operands["dx"].reshape(inputs.x.shape), operands["dgamma"], operands["dbeta"]


RUN = (Case("odd", (2, 8, 5, 7), 2), Case("tiles", (2, 6, 70, 71), 2), Case("rank2", (5, 12), 3))


@pytest.mark.parametrize("case", RUN, ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_linalg_of_the_gradient_run_on_a_cpu_keeps_derived_bounds(dtype, case, tmp_path):
    for family in ("centred", "offset_100"):
        inputs = cases.make(case, dtype, family=family)
        arguments = (inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)
        truth = reference.group_norm_backward(*arguments)
        bounds = tolerance.backward_bounds(*arguments, truth)
        for got, expected, bound in zip(backward(inputs, tmp_path / family), truth, bounds, strict=True):
            assert (np.abs(reference.to_float64(got) - expected) <= bound).all()


def test_linalg_of_other_gradients_run_on_a_cpu_keeps_derived_bounds(tmp_path):
    inputs = cases.make(RUN[0], "bfloat16")
    beta = cases.uniform((8,), 9).astype(np.float32)
    arguments = (inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)
    truth = reference.group_norm_backward(*arguments, activation="swish", beta=beta)
    bounds = tolerance.swish_backward_bounds(*arguments, beta, 1.0, truth)
    for got, expected, bound in zip(backward(inputs, tmp_path / "silu", beta=beta), truth, bounds, strict=True):
        assert (np.abs(reference.to_float64(got) - expected) <= bound).all()
    inputs = cases.make(RUN[0], "float32", family="dy_offset")
    inputs = inputs._replace(mean=inputs.mean + np.float32(0.01))
    truth = reference.group_norm_backward(
        inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma, recenter=True
    )  # fmt: skip
    for got, expected in zip(backward(inputs, tmp_path / "recenter", recenter=True), truth, strict=True):
        assert np.abs(got - expected).max() <= 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize("case", RUN, ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_linalg_of_the_printed_formula_run_on_a_cpu_keeps_derived_bounds(dtype, case, tmp_path):
    inputs = cases.grouped(cases.make(case, dtype))
    n, groups, *rest = inputs.x.shape
    of = name(inputs.x)
    mask = (True, False, False)
    problem = Problem("printed", n, groups, int(np.prod(rest)), groups, of, None, None, of, output_mask=mask)
    operands = {field: flat(array) for field, array in inputs._asdict().items()}
    operands["dx"] = unwritten(inputs.x.size, inputs.x.dtype)
    run(schedule.backward(problem, choose(problem, CHIPS[NPU])), problem, operands, tmp_path)
    arguments = (inputs.x, inputs.dy, inputs.gamma, inputs.mean, inputs.rstd)
    truth = reference.group_normalization_grad(*arguments)
    error = np.abs(reference.to_float64(operands["dx"]).reshape(truth.shape) - truth)
    assert (error <= tolerance.printed_bound(*arguments, truth)).all()


@pytest.mark.parametrize("case", RUN, ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_linalg_of_the_forward_run_on_a_cpu_matches_the_reference(dtype, case, tmp_path):
    inputs = cases.make(case, dtype)
    n, channels, *rest = case.shape
    beta = cases.uniform((channels,), 9).astype(inputs.gamma.dtype)
    problem = Problem(
        "forward", n, channels, int(np.prod(rest)), case.num_groups, name(inputs.x), name(inputs.gamma), name(beta),
        "float32",
    )  # fmt: skip
    operands = {"x": flat(inputs.x), "gamma": flat(inputs.gamma), "beta": flat(beta)}
    operands["y"] = unwritten(inputs.x.size, inputs.x.dtype)
    operands |= {field: unwritten(n * case.num_groups, np.float32) for field in ("mean", "rstd")}
    run(schedule.forward(problem, choose(problem, CHIPS[NPU]), 1e-5), problem, operands, tmp_path)
    truth = reference.group_norm(inputs.x, case.num_groups, inputs.gamma, beta)
    u, size = 2.0**-24, np.abs(reference.to_float64(inputs.x)).max()
    bound = (5 + 2 * tolerance.ROUNDINGS) * u * (np.abs(truth.y).max() + 2)
    bound = bound + tolerance.unit_roundoff(inputs.x.dtype) * np.abs(truth.y)
    assert (np.abs(reference.to_float64(operands["y"]).reshape(case.shape) - truth.y) <= bound).all()
    assert np.abs(operands["mean"].reshape(truth.mean.shape) - truth.mean).max() <= 2 * tolerance.ROUNDINGS * u * size
    rstd = operands["rstd"].reshape(truth.rstd.shape)
    assert (np.abs(rstd - truth.rstd) <= 2 * tolerance.ROUNDINGS * u * truth.rstd).all()


def test_a_kernel_that_is_wrong_is_found(tmp_path):
    inputs = cases.make(RUN[0], "float32")
    truth = reference.group_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)
    dx, _, _ = backward(inputs, tmp_path, break_it=True)
    assert np.abs(dx - truth.dx).max() > 1e-4

"""Guesses at the cause: planted faults found, clean cases silent."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import groupnorm
from compared import DTYPES, made, save
from groupnorm import reference
from groupnorm.compare import causes, scan, source
from groupnorm.golden import ascend910b, store
from groupnorm.golden.request import PRINTED, TRUE, Range


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


def _guesses(dx, request):
    """The causes that are named for this dx against ./case."""
    save("dx.npy", dx.astype(request.dtype_of("dx")))
    (case,) = store.read_manifest(Path("case/case.json"))
    kinds = {"dtype": request.dtype_of("dx"), "shape": request.shape}
    got, golden = (
        source.open_tensor(s, p, name="dx", **kinds)
        for s, p in (("GOT", Path("dx.npy")), ("GOLDEN", Path("case/dx.npy")))
    )
    pair = source.Pair("case", got, golden, case, "dx")
    return {cause.name for cause in causes.guess(pair, *scan.scan(got, golden))}


def test_wrong_formula_is_named():
    request, inputs, _ = made(op=TRUE)
    shape = (2, 3, 4, 5, 7)
    gamma = np.broadcast_to(inputs["gamma"].reshape(1, 3, 4, 1, 1), shape)
    printed = reference.group_normalization_grad(
        inputs["x"].reshape(shape), inputs["dy"].reshape(shape), gamma, inputs["mean"], inputs["rstd"]
    )
    assert _guesses(printed.reshape(request.shape), request) == {"wrong formula"}
    request, inputs, _ = made(op=PRINTED)
    flat = {n: inputs[n].reshape(2, 12, 5, 7) for n in ("x", "dy")}
    channel = inputs["gamma"][0].reshape(12, -1)[:, 0]
    true = reference.group_norm_backward(flat["dy"], flat["x"], inputs["mean"], inputs["rstd"], channel).dx
    assert _guesses(true.reshape(request.shape), request) == {"wrong formula"}


def test_narrow_statistics_are_named():
    for name in ("float16", "bfloat16"):
        request, inputs, _ = made(family="offset_100")
        narrow = {n: inputs[n].astype(DTYPES[name]) for n in ("mean", "rstd")}
        dx = reference.group_norm_backward(inputs["dy"], inputs["x"], **narrow, gamma=inputs["gamma"]).dx
        assert _guesses(dx, request) == {"statistics in low precision"}


def test_a_shifted_group_is_named():
    for step in (1, -1):
        request, inputs, _ = made(family="community_normal")
        moved = {n: np.roll(inputs[n].reshape(-1), step).reshape(inputs[n].shape) for n in ("mean", "rstd")}
        dx = reference.group_norm_backward(inputs["dy"], inputs["x"], **moved, gamma=inputs["gamma"]).dx
        assert _guesses(dx, request) == {"shifted group index"}


def test_the_wrong_layout_is_named():
    request, inputs, outputs = made()
    last = np.moveaxis(outputs["dx"], 1, -1)
    assert _guesses(np.ascontiguousarray(last).reshape(request.shape), request) == {"layout"}
    n, c, *rest = request.shape
    first = np.moveaxis(outputs["dx"].reshape(n, *rest, c), -1, 1)
    assert _guesses(first, request) == {"layout"}
    read = {k: np.ascontiguousarray(np.moveaxis(inputs[k], 1, -1)).reshape(request.shape) for k in ("x", "dy")}
    dx = reference.group_norm_backward(read["dy"], read["x"], inputs["mean"], inputs["rstd"], inputs["gamma"]).dx
    assert _guesses(dx, request) == {"layout"}


@pytest.mark.parametrize("value", [0.0, 7.5, np.nan])
def test_an_unwritten_tile_is_named(value):
    request, _, outputs = made()
    dx = outputs["dx"].copy()
    dx.reshape(-1)[100:180] = value
    assert _guesses(dx, request) == {"unwritten tile"}


def test_overflow_is_named():
    request, _, outputs = made(dtype="float16")
    dx = outputs["dx"].copy()
    dx[0, 3, 2, 1] = np.inf
    assert _guesses(dx, request) == {"overflow to Inf"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_flushed_subnormals_are_named(dtype):
    request, _, outputs = made(dtype=dtype, family="tiny")
    dx = outputs["dx"].copy()
    dx[np.abs(dx) < ml_dtypes.finfo(dx.dtype).smallest_normal] = 0
    assert _guesses(dx, request) == {"subnormals flushed to zero"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_saturation_is_named(dtype):
    largest = float(ml_dtypes.finfo(DTYPES[dtype]).max)
    ranges = {"dy": Range("uniform", -0.9 * largest, 0.9 * largest), "rstd": Range("uniform", 4.0, 4.0)}
    request, _, outputs = made(dtype=dtype, ranges=ranges)
    golden = outputs["dx"]
    infinite = np.isinf(golden.astype(np.float64))
    assert infinite.sum() > 4
    dx = np.where(infinite, np.copysign(largest, golden.astype(np.float64)), golden.astype(np.float64))
    assert _guesses(dx.astype(golden.dtype), request) == {"saturation"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_ties_are_named(dtype):
    """The kernel's own float32 values, rounded to even by the one and away from zero by the other."""
    # M, gamma and rstd are powers of two: values have few bits, and many lie half-way.
    ranges = {name: Range("uniform", v, v) for name, v in (("gamma", 1.0), ("mean", 0.0), ("rstd", 0.5))}
    fields = {"num_groups": 16, "numerics": "ascend910b", "family": "unit_test", "ranges": ranges}
    request, inputs, outputs = made(op=PRINTED, dtype=dtype, shape=(64, 16, 64), **fields)
    even = ascend910b.before_cast(**inputs).astype(DTYPES[dtype])
    assert (even.astype(np.float64) != outputs["dx"].astype(np.float64)).sum() >= 4
    assert _guesses(even, request) == {"ties"}


def test_two_hundred_clean_cases_are_silent():
    """What our own operators and the model of the kernel give, over shapes, dtypes and families."""
    rng = np.random.default_rng(11)
    families = ["community", "community_normal", "centred", "offset_100", "dy_offset", "relu", "pixels", "unit_test"]
    differing = 0
    for i in range(200):
        n, groups, d = int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(1, 5))
        rest = tuple(int(v) for v in rng.integers(1, 24, int(rng.integers(1, 3))))
        op, dtype = (PRINTED, TRUE)[i % 2], ["float32", "float16", "bfloat16"][i % 3]
        shape = (n, groups, d, *rest) if op == PRINTED else (n, groups * d, *rest)
        family = families[i % len(families)]
        request, inputs, outputs = made(op=op, dtype=dtype, shape=shape, num_groups=groups, family=family, seed=i)
        if op == PRINTED and i % 4 == 0:
            dx = ascend910b.group_normalization_grad(**inputs)
        elif op == PRINTED:
            dx = groupnorm.group_normalization_grad(**inputs)
        else:
            dx = groupnorm.group_norm_backward(*(inputs[k] for k in ("dy", "x", "mean", "rstd", "gamma"))).dx
        differing += bool((dx != outputs["dx"]).any())
        assert _guesses(dx, request) == set(), (i, request)
    assert differing > 60  # most of the others agree to the bit

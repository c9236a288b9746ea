"""Comparison: metrics against straightforward arithmetic, verdicts at their thresholds."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import groupnorm
from command import run as _run
from compared import DTYPES, made, save, tensors
from groupnorm.compare import result, scan
from groupnorm.compare import standards as st
from groupnorm.golden.request import STANDARDS


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.parametrize("share", [0.3, 1.0])
@pytest.mark.parametrize("shape", [(2, 3, 7), (3, 5, 70001), (4, 200000), (300001,)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_figures_are_those_of_plain_arithmetic(dtype, shape, share, monkeypatch):
    monkeypatch.setattr(scan, "PIECE", 1 << 17)  # several pieces
    dt = DTYPES[dtype]
    rng = np.random.default_rng(3)
    golden = rng.standard_normal(shape).astype(dt)
    noise = rng.standard_normal(shape) * (rng.random(shape) < share) * 2.0**-7
    got = (golden.astype(np.float64) * (1 + noise)).astype(dt)
    t, rows = scan.scan(*tensors(got, golden))
    a, g = got.astype(np.float64), golden.astype(np.float64)
    error, size = np.abs(a - g), np.abs(g)
    atol, rtol, _ = st.COMMUNITY[dtype]
    near = {"rel": 1e-4}  # sums of a block are in float32 for 16-bit data
    assert t.count == golden.size
    assert t.differing == np.count_nonzero(a != g)
    assert abs(t.sums["community_bad"] - np.count_nonzero(error > atol + rtol * size)) <= 2
    assert abs(t.sums["per_mille_bad"] - np.count_nonzero(error > st.PER_MILLE[dtype] * size)) <= 2
    assert t.maxima["absolute"] == pytest.approx(error.max(), **near)
    assert t.sums["absolute"] == pytest.approx(error.sum(), **near)
    assert t.sums["mere"] == pytest.approx((error / (size + 1e-7)).sum(), **near)
    assert t.maxima["mare"] == pytest.approx((error / (size + 1e-7)).max(), **near)
    assert t.sums["square"] == pytest.approx((error**2).sum(), **near)
    metrics = result._metrics(t)
    nonzero = size > np.finfo(float).eps
    assert metrics["CosineSimilarity"] == pytest.approx((a * g).sum() / np.sqrt((a**2).sum() * (g**2).sum()), rel=1e-6)
    assert metrics["RelativeEuclideanDistance"] == pytest.approx(np.sqrt((error**2).sum() / (g**2).sum()), **near)
    assert metrics["AccumulatedRelativeError"] == pytest.approx((error[nonzero] / size[nonzero]).sum(), **near)
    assert metrics["RootMeanSquareError"] == pytest.approx(np.sqrt((error**2).mean()), **near)
    ratio = (error / (atol + rtol * size)).reshape(-1)
    assert ratio[t.worst[0][1]] == pytest.approx(ratio.max(), **near)
    if len(shape) == 1:
        assert rows is None
        return
    by_row = error.reshape(shape[0] * shape[1], -1)
    np.testing.assert_allclose(rows.largest, by_row.max(1), rtol=1e-4)
    np.testing.assert_allclose(rows.total, by_row.sum(1), rtol=1e-4)
    assert rows.bad.sum() == t.sums["community_bad"]


@pytest.mark.parametrize("share", [0.001, 0.9])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_huge_error_is_in_the_metrics_at_its_size(dtype, share):
    dt = DTYPES[dtype]
    rng = np.random.default_rng(5)
    golden = rng.standard_normal((4, 1000)).astype(dt)
    got = np.where(rng.random(golden.shape) < share, golden.astype(np.float32) * 1.5, golden.astype(np.float32))
    got[1, 7] = 3e38
    got = got.astype(dt)
    metrics = result._metrics(scan.scan(*tensors(got, golden))[0])
    a, g = got.astype(np.float64), golden.astype(np.float64)
    error = np.abs(a - g)
    assert metrics["RootMeanSquareError"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-6)
    assert metrics["MeanAbsoluteError"] == pytest.approx(error.mean(), rel=1e-6)
    assert metrics["MeanRelativeError"] == pytest.approx((error / np.abs(g)).mean(), rel=1e-6)
    assert metrics["CosineSimilarity"] == pytest.approx((a * g).sum() / np.sqrt((a**2).sum() * (g**2).sum()), rel=1e-6)


def test_the_distance_in_ulp_counts_neighbours():
    for dt in (np.float16, np.float32, np.float64):
        value = np.array([-1.0, -0.0, 0.0, 1.0, 65504.0], dt)
        stepped = value.copy()
        for _ in range(3):
            stepped = np.nextafter(stepped, np.array(-np.inf, dt))
        t, _ = scan.scan(*tensors(stepped, value))
        assert t.histogram[2] == 5  # the bin of 2 and 3
        assert t.maxima["ulp"] == 3
    for dtype, bits in (("float16", 16), ("bfloat16", 16), ("float32", 32), ("float64", 64)):
        largest = np.array([-1.0, 1.0], DTYPES[dtype]) * ml_dtypes.finfo(DTYPES[dtype]).max
        t, _ = scan.scan(*tensors(largest, largest[::-1].copy()))
        assert t.maxima["ulp"] == 2 * float(largest[1:].view(f"u{bits // 8}")[0])  # more than a signed number holds
        assert t.histogram[bits] == 2
    t, _ = scan.scan(*tensors(np.array([-0.0], np.float32), np.array([0.0], np.float32)))
    assert t.histogram[0] == 2 - 1
    assert t.maxima["ulp"] == 0


def test_infinities_and_nan_agree_with_themselves_alone(capsys):
    golden = np.array([[np.nan, np.inf, -np.inf, 1.0, 2.0] * 8], np.float32)
    assert tensors(golden, golden)
    assert _run(capsys, "compare", "got.npy", "golden.npy")[0] == 0
    for index, value in ((0, 1.0), (1, -np.inf), (1, np.nan), (3, np.inf), (4, np.nan)):
        got = golden.copy()
        got[0, index] = value
        save("got.npy", got)
        code, out, _ = _run(capsys, "compare", "got.npy", "golden.npy", "--json", "r.json")
        assert code == 1, (index, value)
        alike = 24 if index > 2 else 23
        assert f"not finite: {alike} the same on both sides, 1 not the same" in " ".join(out.split())
        found = json.loads(Path("r.json").read_text())["results"][0]
        assert found["worst"][0]["index"] == [0, index]
        assert found["metrics"]["MaxAbsoluteError"] == 0  # of the finite pairs
        assert found["nonfinite"]["agreeing"] == alike
        assert found["finite_pairs"] == 40 - alike - 1
        assert not any(v["passed"] for v in found["verdicts"].values() if v["standard"] != "msopst")


# Each standard on both sides of its thresholds: how many of 1000 elements are off, by how much, and what it says.
EDGES = [
    ("community", "float32", 10, 2.0**-15 + 2.0**-9, True),
    ("community", "float32", 11, 2.0**-15 + 2.0**-9, False),
    ("community", "float32", 1, 0.011, False),
    ("community", "bfloat16", 1, 0.5, True),
    ("community", "bfloat16", 1, 1.5, False),
    ("mere-mare", "float32", 1, 1.1e-3, True),
    ("mere-mare", "float32", 1, 1.3e-3, False),
    ("mere-mare", "float32", 1000, 1.3e-4, False),
    ("double-per-mille", "float16", 1, 0.01, True),
    ("double-per-mille", "float16", 2, 0.01, False),
    ("msopst", "float32", 50, 0.02, True),
    ("msopst", "float32", 51, 0.02, False),
    ("msopst", "float32", 1, 0.2, False),
    ("ulp", "float32", 1000, 2.0**-23, True),
    ("ulp", "float32", 1, 2.0**-22, False),
]


@pytest.mark.parametrize(("standard", "dtype", "count", "off", "passes"), EDGES)
def test_standards_at_their_thresholds(capsys, standard, dtype, count, off, passes):
    golden = np.ones((10, 10, 10), DTYPES[dtype])
    got = golden.copy().reshape(-1)
    got[:count] = 1 + off
    tensors(got.reshape(golden.shape), golden)
    code, _, err = _run(capsys, "compare", "got.npy", "golden.npy", "--standard", standard, "--dtype", dtype)
    assert (code, err) == (0 if passes else 1, "")


def test_our_own_bound_passes_our_operator_and_fails_a_sloppy_one(capsys):
    _, inputs, _ = made(shape=(2, 12, 40, 50))
    grads = groupnorm.group_norm_backward(*(inputs[n] for n in ("dy", "x", "mean", "rstd", "gamma")))
    Path("dev").mkdir()
    for name, array in grads._asdict().items():
        save(f"dev/{name}.npy", array)
    assert _run(capsys, "compare", "dev", "case", "--standard", "groupnorm")[0] == 0
    save("dev/dx.npy", grads.dx * np.float32(1 + 8e-6))
    assert _run(capsys, "compare", "dev", "case", "--standard", "groupnorm")[0] == 1
    assert _run(capsys, "compare", "dev", "case")[0] == 0  # the community standard does not see it
    assert set(STANDARDS) == {*st.judge(st.Figures("float32", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0), 1)}

"""Comparison: verdicts against straightforward arithmetic, planted faults found, clean cases silent, bad files refused."""

from __future__ import annotations

import csv
import html.parser
import io
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import groupnorm
from command import run as _run
from conftest import BFLOAT16
from groupnorm import reference
from groupnorm.cli import main
from groupnorm.compare import causes, result, scan, source
from groupnorm.compare import standards as st
from groupnorm.golden import ascend910b, data, expected, store
from groupnorm.golden.request import PRINTED, STANDARDS, TRUE, Range, Request

DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
}
ALL = ("x", "dy", "gamma", "mean", "rstd")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


def _save(name, array):
    array = np.ascontiguousarray(array)
    np.save(name, array.view(np.uint16) if array.dtype == BFLOAT16 else array)


def _made(**fields):
    """A golden case in ./case, with its arrays."""
    op = fields.setdefault("op", TRUE)
    fields.setdefault("shape", (2, 3, 4, 5, 7) if op == PRINTED else (2, 12, 5, 7))
    request = Request(**{"name": "case", "num_groups": 3, "dtype": "float32", "family": "centred", **fields})
    if Path("case").exists():
        shutil.rmtree("case")
    store.write_case(Path(), request, store.Layout())
    inputs = data.make_inputs(request)
    return request, inputs, expected.make_expected(request, inputs)


def _guesses(dx, request):
    """The causes that are named for this dx against ./case."""
    _save("dx.npy", dx.astype(request.dtype_of("dx")))
    (case,) = store.read_manifest(Path("case/case.json"))
    kinds = {"dtype": request.dtype_of("dx"), "shape": request.shape}
    got, golden = (
        source.open_tensor(s, p, name="dx", **kinds)
        for s, p in (("GOT", Path("dx.npy")), ("GOLDEN", Path("case/dx.npy")))
    )
    pair = source.Pair("case", got, golden, case, "dx")
    return {cause.name for cause in causes.guess(pair, *scan.scan(got, golden))}


# Figures ----------------------------------------------------------------------------------------------------------------


def _tensors(got, golden):
    _save("got.npy", got)
    _save("golden.npy", golden)
    return [source.open_tensor("GOT", Path(n), dtype=golden.dtype) for n in ("got.npy", "golden.npy")]


@pytest.mark.parametrize("shape", [(2, 3, 7), (3, 5, 70001), (4, 200000), (300001,)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_figures_are_those_of_plain_arithmetic(dtype, shape, monkeypatch):
    monkeypatch.setattr(scan, "PIECE", 1 << 17)  # several pieces
    dt = DTYPES[dtype]
    rng = np.random.default_rng(3)
    golden = rng.standard_normal(shape).astype(dt)
    noise = rng.standard_normal(shape) * (rng.random(shape) < 0.3) * 2.0**-7
    got = (golden.astype(np.float64) * (1 + noise)).astype(dt)
    t, rows = scan.scan(*_tensors(got, golden))
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


def test_the_distance_in_ulp_counts_neighbours():
    for dt in (np.float16, np.float32, np.float64):
        value = np.array([-1.0, -0.0, 0.0, 1.0, 65504.0], dt)
        stepped = value.copy()
        for _ in range(3):
            stepped = np.nextafter(stepped, np.array(-np.inf, dt))
        t, _ = scan.scan(*_tensors(stepped, value))
        assert t.histogram[2] == 5  # the bin of 2 and 3
        assert t.maxima["ulp"] == 3
    t, _ = scan.scan(*_tensors(np.array([-0.0], np.float32), np.array([0.0], np.float32)))
    assert t.histogram[0] == 2 - 1
    assert t.maxima["ulp"] == 0


def test_infinities_and_nan_agree_with_themselves_alone(capsys):
    golden = np.array([[np.nan, np.inf, -np.inf, 1.0, 2.0] * 8], np.float32)
    assert _tensors(golden, golden)
    assert _run(capsys, "compare", "got.npy", "golden.npy")[0] == 0
    for index, value in ((0, 1.0), (1, -np.inf), (1, np.nan), (3, np.inf), (4, np.nan)):
        got = golden.copy()
        got[0, index] = value
        _save("got.npy", got)
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
    _tensors(got.reshape(golden.shape), golden)
    code, _, err = _run(capsys, "compare", "got.npy", "golden.npy", "--standard", standard, "--dtype", dtype)
    assert (code, err) == (0 if passes else 1, "")


def test_our_own_bound_passes_our_operator_and_fails_a_sloppy_one(capsys):
    _, inputs, _ = _made(shape=(2, 12, 40, 50))
    grads = groupnorm.group_norm_backward(*(inputs[n] for n in ("dy", "x", "mean", "rstd", "gamma")))
    Path("dev").mkdir()
    for name, array in grads._asdict().items():
        _save(f"dev/{name}.npy", array)
    assert _run(capsys, "compare", "dev", "case", "--standard", "groupnorm")[0] == 0
    _save("dev/dx.npy", grads.dx * np.float32(1 + 8e-6))
    assert _run(capsys, "compare", "dev", "case", "--standard", "groupnorm")[0] == 1
    assert _run(capsys, "compare", "dev", "case")[0] == 0  # the community standard does not see it
    assert set(STANDARDS) == {*st.judge(st.Figures("float32", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0), 1)}


# Causes -----------------------------------------------------------------------------------------------------------------


def test_wrong_formula_is_named():
    request, inputs, _ = _made(op=TRUE)
    shape = (2, 3, 4, 5, 7)
    gamma = np.broadcast_to(inputs["gamma"].reshape(1, 3, 4, 1, 1), shape)
    printed = reference.group_normalization_grad(
        inputs["x"].reshape(shape), inputs["dy"].reshape(shape), gamma, inputs["mean"], inputs["rstd"]
    )
    assert _guesses(printed.reshape(request.shape), request) == {"wrong formula"}
    request, inputs, _ = _made(op=PRINTED)
    flat = {n: inputs[n].reshape(2, 12, 5, 7) for n in ("x", "dy")}
    channel = inputs["gamma"][0].reshape(12, -1)[:, 0]
    true = reference.group_norm_backward(flat["dy"], flat["x"], inputs["mean"], inputs["rstd"], channel).dx
    assert _guesses(true.reshape(request.shape), request) == {"wrong formula"}


def test_narrow_statistics_are_named():
    for name in ("float16", "bfloat16"):
        request, inputs, _ = _made(family="offset_100")
        narrow = {n: inputs[n].astype(DTYPES[name]) for n in ("mean", "rstd")}
        dx = reference.group_norm_backward(inputs["dy"], inputs["x"], **narrow, gamma=inputs["gamma"]).dx
        assert _guesses(dx, request) == {"statistics in low precision"}


def test_a_shifted_group_is_named():
    for step in (1, -1):
        request, inputs, _ = _made(family="community_normal")
        moved = {n: np.roll(inputs[n].reshape(-1), step).reshape(inputs[n].shape) for n in ("mean", "rstd")}
        dx = reference.group_norm_backward(inputs["dy"], inputs["x"], **moved, gamma=inputs["gamma"]).dx
        assert _guesses(dx, request) == {"shifted group index"}


def test_the_wrong_layout_is_named():
    request, inputs, outputs = _made()
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
    request, _, outputs = _made()
    dx = outputs["dx"].copy()
    dx.reshape(-1)[100:180] = value
    assert _guesses(dx, request) == {"unwritten tile"}


def test_overflow_is_named():
    request, _, outputs = _made(dtype="float16")
    dx = outputs["dx"].copy()
    dx[0, 3, 2, 1] = np.inf
    assert _guesses(dx, request) == {"overflow to Inf"}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_flushed_subnormals_are_named(dtype):
    request, _, outputs = _made(dtype=dtype, family="tiny")
    dx = outputs["dx"].copy()
    dx[np.abs(dx) < np.finfo(dtype).smallest_normal] = 0
    assert _guesses(dx, request) == {"subnormals flushed to zero"}


def test_saturation_is_named():
    ranges = {"dy": Range("uniform", -60000.0, 60000.0), "rstd": Range("uniform", 4.0, 4.0)}
    request, _, outputs = _made(dtype="float16", ranges=ranges)
    golden = outputs["dx"]
    assert np.isinf(golden).sum() > 4
    assert _guesses(np.clip(golden, -65504, 65504), request) == {"saturation"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_ties_are_named(dtype):
    """The kernel's own float32 values, rounded to even by the one and away from zero by the other."""
    # M, gamma and rstd are powers of two: values have few bits, and many lie half-way.
    ranges = {name: Range("uniform", v, v) for name, v in (("gamma", 1.0), ("mean", 0.0), ("rstd", 0.5))}
    fields = {"num_groups": 16, "numerics": "ascend910b", "family": "unit_test", "ranges": ranges}
    request, inputs, outputs = _made(op=PRINTED, dtype=dtype, shape=(64, 16, 64), **fields)
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
        request, inputs, outputs = _made(op=op, dtype=dtype, shape=shape, num_groups=groups, family=family, seed=i)
        if op == PRINTED and i % 4 == 0:
            dx = ascend910b.group_normalization_grad(**inputs)
        elif op == PRINTED:
            dx = groupnorm.group_normalization_grad(**inputs)
        else:
            dx = groupnorm.group_norm_backward(*(inputs[k] for k in ("dy", "x", "mean", "rstd", "gamma"))).dx
        differing += bool((dx != outputs["dx"]).any())
        assert _guesses(dx, request) == set(), (i, request)
    assert differing > 60  # most of the others agree to the bit


# Files ------------------------------------------------------------------------------------------------------------------


def _prepare():
    x = np.random.default_rng(0).standard_normal((2, 4, 8)).astype(np.float32)
    np.save("good.npy", x)
    whole = Path("good.npy").read_bytes()
    for name, content in (
        ("short.npy", whole[:-10]),
        ("long.npy", whole + b"1234"),
        ("header.npy", whole[:40]),
        ("empty.npy", b""),
        ("text.npy", b"not an array"),
        ("huge.npy", whole.replace(b"(2, 4, 8), }" + 8 * b" ", b"(2500000000, 4, 8), }"[:20].ljust(20))),
        ("negative.npy", whole.replace(b"(2, 4, 8)", b"(2,-4, 8)")),
        ("text.npz", b"PK\x03\x04 no"),
        ("odd.bin", b"123"),
        ("empty.bin", b""),
        ("bad.json", b"{"),
        ("list.json", b"[]"),
        ("none.json", b'{"format": "groupnorm-golden-1", "cases": []}'),
        ("evil.json", b'{"format": "groupnorm-golden-1", "cases": [{"request": {"name": "a"}, "arrays": {}}]}'),
        ("deep.json", b"[" * 100000),
    ):
        Path(name).write_bytes(content)
    ten_gb = b"(625000000, 4, 1), }"
    Path("ten_gb.npy").write_bytes(whole.replace(b"(2, 4, 8), }" + 8 * b" ", ten_gb))
    np.save("half.npy", x.astype(np.float16))
    np.save("ints.npy", x.astype(np.int32))
    np.save("words.npy", np.zeros((2, 4, 8), np.uint16))
    np.save("small.npy", x[:1])
    np.save("nothing.npy", x[:0])
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save("swapped.npy", x.astype(">f4"))
    np.save("fortran.npy", np.asfortranarray(x))
    np.savez("two.npz", a=x, b=x)
    Path("folder").mkdir()


BAD = [
    *((f"{n}.npy", "good.npy", f"GOT: {n}.npy ") for n in ("short", "long", "header", "empty", "text", "huge", "ten_gb", "negative", "objects")),
    ("good.npy", "ten_gb.npy", "GOLDEN: ten_gb.npy has 256 bytes of data; accepted: 10000000000, which its header promises"),
    ("ints.npy", "good.npy", "GOT: ints.npy has dtype int32; accepted: float32, float16, bfloat16, float64"),
    ("words.npy", "good.npy", "accepted: uint16 only as bfloat16, with --dtype bfloat16"),
    ("half.npy", "good.npy", "GOT: half.npy has dtype float16; accepted: float32, that of good.npy"),
    ("swapped.npy", "good.npy", "GOT: swapped.npy has dtype >f4; accepted:"),
    ("fortran.npy", "good.npy", "GOT: fortran.npy is in Fortran order; accepted: C order"),
    ("small.npy", "good.npy", "GOT: small.npy has shape (1, 4, 8); accepted: (2, 4, 8), that of good.npy"),
    ("odd.bin", "odd.bin", "GOT: odd.bin has no header; accepted: .bin files with --dtype, or a manifest"),
    ("text.npz", "good.npy", "GOT: text.npz cannot be read as .npz"),
    ("two.npz", "good.npy", "no array dx among a, b"),
    ("good.npy", "bad.json", "bad.json: not JSON"),
    ("good.npy", "deep.json", "deep.json: not JSON"),
    ("good.npy", "list.json", "list.json: no groupnorm-golden-1 manifest"),
    ("good.npy", "none.json", "none.json has no case; accepted: one case or more"),
    ("good.npy", "evil.json", "evil.json: case 0: request: dtype, num_groups, op, shape not given"),
    ("good.npy", "folder", "GOT: good.npy is a file, GOLDEN folder a folder"),
    ("folder", "folder", "GOLDEN: folder holds no array"),
    ("folder", "good.npy", "GOT: folder is a folder, GOLDEN good.npy a file"),
    ("missing.npy", "good.npy", "'missing.npy' does not exist"),
    ("good.npy", "good.npy --standard groupnorm", "--standard: groupnorm without the inputs; accepted: with a manifest"),
    ("good.npy", "good.npy --num-groups 3", "--num-groups: 3, GOLDEN has shape (2, 4, 8); accepted: a divisor of C"),
    ("good.npy", "good.npy --json nowhere/r.json", "--json: nowhere/r.json; accepted: a folder that exists"),
    ("good.npy", "good.npy --standard nice", "'nice' is not one of"),
    ("odd.bin", "odd.bin --dtype float16", "GOT: odd.bin has 3 bytes; accepted: a multiple of 2 (float16)"),
    ("odd.bin", "odd.bin --dtype float16 --shape 2,2", "GOT: odd.bin has 3 bytes; accepted: 8 (float16) for shape (2, 2)"),
    ("empty.bin", "empty.bin --dtype float16", "GOT: empty.bin has 0 bytes; accepted: a multiple of 2 (float16), or none with --shape"),
]  # fmt: skip


@pytest.mark.parametrize(("got", "golden", "message"), BAD, ids=[f"{a} {b}" for a, b, _ in BAD])
def test_bad_files(capsys, got, golden, message):
    _prepare()
    before = sorted(os.listdir())
    code, out, err = _run(capsys, "compare", got, *golden.split(), *(["--html", "r.html"]))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("groupnorm: error: ")
    assert message in err
    assert sorted(os.listdir()) == before


def test_reports_on_a_full_disk_leave_nothing(capsys):
    golden = np.ones((2, 4, 8), np.float32)
    _tensors(golden * 2, golden)
    before = sorted(os.listdir())
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
        for option in ("--html", "--json", "--csv", "--errors-csv"):
            code, out, err = _run(capsys, "compare", "got.npy", "golden.npy", option, "r.out")
            assert (code, out, err.count("\n")) == (2, "", 1), option
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert sorted(os.listdir()) == before


def test_vendor_names_on_both_sides(capsys):
    """The operator's unit test writes {dtype}_output_... beside {dtype}_golden_...; bfloat16 throughout."""
    request, _, outputs = _made(op=PRINTED, dtype="bfloat16")
    shutil.rmtree("case")
    store.write_case(Path(), request, store.Layout("bin", "unit-test"))
    outputs["dx"].tofile("case/bfloat16_output_t_group_normalization_grad.bin")
    Path("dev/case").mkdir(parents=True)
    shutil.move("case/bfloat16_output_t_group_normalization_grad.bin", "dev/case/")
    assert _run(capsys, "compare", "dev", "case")[0] == 0
    assert _run(capsys, "compare", "dev/case", "case/case.json", "--standard", "ulp", "--ulp", "0")[0] == 0


def test_csv_has_the_vendors_columns(capsys):
    golden = np.arange(1, 65, dtype=np.float32).reshape(1, 4, 16)
    got = golden.copy()
    got[0, 2, 3] += 0.5
    _tensors(got, golden)
    code, *_ = _run(
        capsys, "compare", "got.npy", "golden.npy", "--csv", "m.csv", "--errors-csv", "e.csv", "--json", "r.json"
    )
    assert code == 1
    (row,) = csv.DictReader(io.StringIO(Path("m.csv").read_text()))
    assert float(row["MaxAbsoluteError"]) == 0.5
    assert (row["Result"], row["community"], row["double-per-mille"], row["msopst"]) == (
        "Failed",
        "Failed",
        "Failed",
        "Pass",
    )
    (error,) = csv.DictReader(io.StringIO(Path("e.csv").read_text()))
    assert (error["Index"], error["ExpectOut"], error["RealOut"], error["FpDiff"]) == ("35", "36.0", "36.5", "0.5")
    found = json.loads(Path("r.json").read_text())["results"][0]
    assert found["worst"][0]["index"] == [0, 2, 3]
    assert found["largest_error_by_channel"] == [0, 0, 0.5, 0]


def test_figures_do_not_depend_on_threads(capsys):
    rng = np.random.default_rng(0)
    golden = rng.standard_normal((4, 8, 50000)).astype(np.float32)
    _tensors(golden + rng.standard_normal(golden.shape).astype(np.float32) * 1e-4, golden)
    texts = []
    for threads in (1, 3):
        _run(capsys, "compare", "got.npy", "golden.npy", "--json", "r.json", "--threads", threads)
        texts.append(Path("r.json").read_text())
    assert texts[0] == texts[1]


def test_memory_stays_small():
    """256 MB on each side in less than 200 MB of memory, the interpreter's own included."""
    for name in ("got.bin", "golden.bin"):
        with open(name, "wb") as file:
            file.truncate(1 << 28)
    code = (
        "import re, sys\nfrom groupnorm.cli import main\n"
        "try:\n  main(['compare', 'got.bin', 'golden.bin', '--dtype', 'float32', '--shape', '8,8,1048576'])\n"
        "except SystemExit as e:\n"
        "  print(e.code, int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    exit_code, megabytes = done.stderr.split()
    assert exit_code == "0"
    assert int(megabytes) < 200


def test_a_pipe_is_plain(capsys):
    golden = np.ones((2, 4, 8), np.float32)
    _tensors(golden * 2, golden)
    _, out, _ = _run(capsys, "compare", "got.npy", "golden.npy")
    assert "\x1b" not in out
    assert "FAIL" in out


# The page ---------------------------------------------------------------------------------------------------------------


class _Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.data, self.inside = [], "", ""

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside = dict(attributes).get("id", "") if tag == "script" else ""

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, text):
        if self.inside == "data":
            self.data += text


def _page():
    """A report on a case with two bad groups, one of them with an infinity."""
    _, _, outputs = _made(shape=(3, 12, 5, 7))
    dx = outputs["dx"].copy()
    dx[1, 5] += 0.25
    dx[2, 11, 0, 0] = np.inf
    Path("dev").mkdir()
    _save("dev/dx.npy", dx)
    for name in ("dgamma", "dbeta"):
        _save(f"dev/{name}.npy", outputs[name])
    with pytest.raises(SystemExit) as done:
        main(["compare", "dev", "case", "--html", "report.html"])
    assert done.value.code == 1
    return outputs["dx"], dx


def test_the_page_is_one_file_without_a_network():
    _page()
    text = Path("report.html").read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    for _tag, attributes in page.tags:
        for name in ("src", "href"):
            assert attributes.get(name, "data:").startswith("data:")
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|https?://(?!www\.w3\.org/2000/svg)", text)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text
    found = json.loads(page.data)["results"][0]
    assert found["map"]["cells"][1][1] == pytest.approx(0.25)
    assert found["map"]["cells"][2][2] == "inf"
    assert found["map"]["g"] == [[0, 0], [1, 1], [2, 2]]


def _browser():
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        path = shutil.which(name)
        if path:
            return path
    return None


# What a user would do, run inside the page after its own script; the answer is left in the document.
_DRIVER = """
<script>
"use strict";
const said = {errors: window.pageErrors};
const cells = [...document.querySelectorAll(".heat")[0].querySelectorAll("[role=gridcell]")];
const tip = document.querySelector(".tip");
said.cells = cells.length;
said.stops = cells.filter((c) => c.tabIndex === 0).length;
cells[4].dispatchEvent(new MouseEvent("mouseenter"));
said.hover = tip.textContent;
cells[0].focus();
cells[0].dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowDown", bubbles: true, cancelable: true}));
said.moved = tip.textContent;
said.active = document.activeElement === cells[3];
const table = document.querySelector("table.worst");
const column = (i) => [...table.tBodies[0].rows].map((r) => r.cells[i].textContent);
const press = (i) => table.tHead.rows[0].cells[i].querySelector("button").click();
press(2); said.down = column(2).map(Number); said.sort = table.tHead.rows[0].cells[2].getAttribute("aria-sort");
press(2); said.up = column(2).map(Number);
said.bars = document.querySelectorAll("svg .bar").length;
said.points = document.querySelectorAll("svg circle").length;
said.sections = document.querySelectorAll("section").length;
said.scrolls = document.documentElement.scrollWidth > window.innerWidth;
said.dark = getComputedStyle(document.body).backgroundColor;
const answer = document.createElement("pre"); answer.id = "answer"; answer.textContent = JSON.stringify(said);
document.body.append(answer);
</script>
"""
_LISTENER = "<script>window.pageErrors = []; addEventListener('error', (e) => pageErrors.push(e.message));</script>"


@pytest.mark.parametrize("size", ["1200,900", "420,800"])
def test_the_page_in_a_browser(size):
    browser = _browser()
    if browser is None:
        pytest.skip("no Chromium here: the page was not opened (apt-get install chromium)")
    _page()
    text = Path("report.html").read_text(encoding="utf-8")
    text = text.replace("<main", _LISTENER + "<main").replace("</body>", _DRIVER + "</body>")
    Path("driven.html").write_text(text, encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={Path('profile').resolve()}"]
    done = subprocess.run(
        [
            *command,
            "--enable-logging=stderr",
            f"--window-size={size}",
            "--dump-dom",
            Path("driven.html").resolve().as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
    )
    found = re.search(r'<pre id="answer">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    said = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert said["errors"] == []
    assert "CONSOLE" not in done.stderr, done.stderr[-2000:]
    assert (said["cells"], said["stops"], said["sections"]) == (9, 1, 3)
    assert said["hover"].startswith("n 1, g 1: largest error 0.25")
    assert "35 outside tolerance" in said["hover"]
    assert (said["moved"].startswith("n 1, g 0: largest error 0"), said["active"]) == (True, True)
    assert said["sort"] == "descending"
    assert said["down"] == sorted(said["down"], reverse=True)
    assert said["up"] == sorted(said["up"])
    assert len(set(said["up"])) > 10
    assert said["points"] > 500
    assert said["bars"] >= 3
    assert not said["scrolls"]

"""Golden data: the same bytes everywhere, right values, every format and case list, and nothing half-written."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from command import run as _run
from conftest import BFLOAT16
from groupnorm import reference, tolerance
from groupnorm.compare import source
from groupnorm.golden import ascend910b, case_list, data, expected, store
from groupnorm.golden.request import INPUTS, OUTPUTS, PRINTED, TRUE, Request

DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


def _request(op=PRINTED, dtype="float32", **fields):
    shape = (2, 3, 4, 5, 7) if op == PRINTED else (2, 12, 5, 7)
    return Request(**{"name": "case", "op": op, "shape": shape, "num_groups": 3, "dtype": dtype, **fields})


@pytest.mark.parametrize("naming", store.NAMINGS)
@pytest.mark.parametrize("form", store.SUFFIXES)
@pytest.mark.parametrize(("op", "dtype"), [(o, d) for o in OUTPUTS for d in DTYPES if (o, d) != (PRINTED, "float64")])
def test_every_format_reads_back(op, dtype, form, naming):
    request = _request(op, dtype)
    inputs = data.make_inputs(request)
    arrays = {**inputs, **expected.make_expected(request, inputs)}
    store.write_case(Path(), request, store.Layout(form, naming))
    (case,) = store.read_manifest(Path("case/case.json"))
    assert case.request == request
    for name, array in arrays.items():
        held = case.arrays[name]
        tensor = source.open_tensor(
            "GOT", case.folder / held["file"], name=name, dtype=request.dtype_of(name), shape=request.shape_of(name)
        )
        assert tensor.whole().tobytes() == array.tobytes()
        assert (tensor.shape, tensor.dtype) == (array.shape, array.dtype)
        assert hashlib.sha256((case.folder / held["file"]).read_bytes()).hexdigest() == held["sha256"]


def test_file_names_of_the_vendor():
    request = _request(dtype="bfloat16")
    unit_test = store.file_names(request, store.Layout("bin", "unit-test"))
    assert unit_test["x"] == "bfloat16_x_t_group_normalization_grad.bin"
    assert unit_test["dx"] == "bfloat16_golden_t_group_normalization_grad.bin"
    msopst = store.file_names(request, store.Layout("bin", "msopst"))
    assert (msopst["rstd"], msopst["dx"]) == ("case_input_4.bin", "case_expect_output_0.bin")


# Hashes of all arrays of a case, in order; other machines and versions of NumPy have to come to the same.
HASHES = json.loads((Path(__file__).parent / "golden_hashes.json").read_text())


def _hash(request):
    inputs = data.make_inputs(request)
    digest = hashlib.sha256()
    for array in (*inputs.values(), *expected.make_expected(request, inputs).values()):
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("family", data.FAMILIES)
@pytest.mark.parametrize(("op", "dtype"), [(PRINTED, "float16"), (PRINTED, "bfloat16"), (TRUE, "float32")])
def test_the_same_bytes_everywhere(op, dtype, family):
    assert _hash(_request(op, dtype, family=family)) == HASHES[f"{op} {dtype} {family}"]
    assert _hash(_request(op, dtype, family=family, seed=2)) != HASHES[f"{op} {dtype} {family}"] or family == "ramp"


@pytest.mark.parametrize("dtype", DTYPES)
def test_expected_outputs_are_the_reference_rounded_once(dtype):
    request = _request(TRUE, dtype, family="community_normal")
    inputs = data.make_inputs(request)
    truth = reference.group_norm_backward(*(inputs[n] for n in ("dy", "x", "mean", "rstd", "gamma")))
    for name, array in expected.make_expected(request, inputs).items():
        wanted = tolerance.round_to(getattr(truth, name), array.dtype)
        assert np.array_equal(array.astype(np.float64), wanted)


def test_the_documents_example():
    request = Request("ramp", PRINTED, (2, 4, 128), 4, "float32", family="ramp")
    dx = expected.make_expected(request, data.make_inputs(request))["dx"]
    exact = -(np.arange(128) / 128) * 31.75 / 128
    assert np.array_equal(dx, np.broadcast_to(exact.astype(np.float32), dx.shape))


def test_planted_values_stay_in_their_group():
    request = _request(dtype="float32", family="nan_planted")
    inputs = data.make_inputs(request)
    dx = expected.make_expected(request, inputs)["dx"]
    assert np.isnan(inputs["dy"]).sum() == 1
    groups = np.isnan(dx).reshape(2, 3, -1)
    assert groups.all(2).sum() == 1
    assert groups.sum() == groups.shape[2]


def test_normal_draws_are_normal():
    drawn = data.normal((200000,), 5)
    assert abs(drawn.mean()) < 0.01
    assert abs(drawn.std() - 1) < 0.01
    within = [np.mean(np.abs(drawn) < k) for k in (1, 2, 3)]
    # A sum of twelve has an excess kurtosis of -0.1, which takes 0.004 off the first (Edgeworth's series).
    assert np.allclose(within, [0.6827 - 0.0040, 0.9545, 0.9973], atol=0.003)


# The model of the kernel ------------------------------------------------------------------------------------------------


def _model_by_hand(x, dy, gamma, mean, rstd):
    """One group, element by element in the order of the source."""
    f = np.float32
    m = f(x.size)
    tile = min(ascend910b.TILE[x.dtype.name], max(8, x.size))

    def reduce_sum(values):
        total = f(0)
        for start in range(0, len(values), tile):
            part = list(values[start : start + tile])
            part += [f(0)] * (-len(part) % 64)
            of_tile = None
            for repeat in range(0, len(part), 64):
                tree = part[repeat : repeat + 64]
                while len(tree) > 1:
                    tree = [f(tree[i] + tree[i + 1]) for i in range(0, len(tree), 2)]
                of_tile = tree[0] if of_tile is None else f(of_tile + tree[0])
            total = f(total + of_tile)
        return total

    xf, dyf, gf = (a.astype(f) for a in (x, dy, gamma))
    xhat = [f(f(v - f(mean)) * f(rstd)) for v in xf]
    weighted = [f(a * b) for a, b in zip(dyf, gf, strict=True)]
    s1, s2 = reduce_sum(weighted), reduce_sum([f(w * h) for w, h in zip(weighted, xhat, strict=True)])
    coefficient = f(f(rstd) * f(f(1) / m))
    return np.array(
        [f(f(g * f(f(f(d * m) - s1) - f(h * s2))) * coefficient) for g, d, h in zip(gf, dyf, xhat, strict=True)], f
    )


@pytest.mark.parametrize("size", [1, 7, 64, 65, 2880, 2881, 8000])
def test_the_model_adds_as_the_source_says(size):
    request = Request("m", PRINTED, (1, 1, size), 1, "float32", family="centred", seed=size)
    inputs = data.make_inputs(request)
    dx = ascend910b.group_normalization_grad(**inputs)
    by_hand = _model_by_hand(
        *(inputs[n].reshape(-1) for n in ("x", "dy", "gamma")), inputs["mean"][0, 0], inputs["rstd"][0, 0]
    )
    assert dx.reshape(-1).tobytes() == by_hand.tobytes()
    truth = reference.group_normalization_grad(**inputs)
    assert np.abs(dx - truth).max() <= 1e-4 * np.abs(truth).max()


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_ties_go_away_from_zero(dtype):
    u = 2.0 ** -{"float16": 11, "bfloat16": 8}[dtype.name]
    values = np.array([1 + u, 1 + 3 * u, -(1 + u), 1 + u * (1 - 2**-10), 0.0, np.inf, np.nan], np.float32)
    found = ascend910b.cast_round(values, dtype).astype(np.float64)
    assert found[:5].tolist() == [1 + 2 * u, 1 + 4 * u, -(1 + 2 * u), 1.0, 0.0]
    assert np.isinf(found[5])
    assert np.isnan(found[6])
    largest = ascend910b.largest_of(dtype)
    above = np.array([largest * (1 + u)], np.float64).astype(np.float32)
    assert np.isinf(ascend910b.cast_round(above, dtype).astype(np.float64))[0]
    assert ascend910b.cast_round(above, dtype, "saturate").astype(np.float64)[0] == largest


def test_the_documents_half_way_example():
    half_way = np.array([0.5 + 2.0**-12], np.float32)
    assert ascend910b.cast_round(half_way, np.dtype(np.float16))[0] == 0.5 + 2.0**-11
    assert half_way.astype(np.float16)[0] == 0.5


# Case lists -------------------------------------------------------------------------------------------------------------

TTK = """testcase_name,api_name,tensor_view_shapes,tensor_dtypes,tensor_formats,attributes,input_data_ranges
grad_00,aclnnGroupNormalizationGrad,"((2,3,40),(2,3,40),(2,3,40),(2,3),(2,3))","('float16',)","('ND',)",,
back_00,aclnnGroupNormBackward,"((2,6,5),(2,6,5),(2,3),(2,3),(6,),(2,6,5),(6,),(6,))","('bfloat16',)",,"{'N': 2, 'C': 6, 'HxW': 5, 'group': 3}","((-1,1),(-2,2),(None,None),(None,None),(0.5,1.5))"
"""
MSOPST = [
    {
        "case_name": "Test_001",
        "op": "GroupNormalizationGrad",
        "input_desc": [
            {
                "format": ["ND"],
                "type": ["float16", "float32"],
                "shape": shape,
                "data_distribute": ["uniform"],
                "value_range": [r],
            }
            for shape, r in [
                ([2, 3, 8], [-3, 3]),
                ([2, 3, 8], [-1, 1]),
                ([2, 3, 8], [1, 1]),
                ([2, 3], [0, 0]),
                ([2, 3], [0.5, 2]),
            ]
        ],
        "output_desc": [{"format": ["ND"], "type": ["float16", "float32"], "shape": [2, 3, 8]}],
        "calc_expect_func_file": "golden.py:calc",
    }
]


def test_a_case_list_of_ttk():
    Path("cases.csv").write_text(TTK)
    first, second = case_list.read(Path("cases.csv"), case_list.Defaults())
    assert (first.name, first.op, first.shape, first.num_groups, first.dtype) == (
        "grad_00",
        PRINTED,
        (2, 3, 40),
        3,
        "float16",
    )
    assert (second.op, second.shape, second.num_groups, second.dtype) == (TRUE, (2, 6, 5), 3, "bfloat16")
    inputs = {n: a.astype(np.float64) for n, a in data.make_inputs(second).items()}
    assert np.abs(inputs["dy"]).max() <= 1 < np.abs(inputs["x"]).max() <= 2
    assert inputs["gamma"].min() >= 0.5
    assert np.allclose(inputs["mean"], inputs["x"].reshape(2, 3, -1).mean(2), atol=0.02)  # made from x


def test_a_case_list_of_msopst(capsys):
    Path("cases.json").write_text(json.dumps(MSOPST))
    code, _, err = _run(capsys, "golden", "out", "--cases", "cases.json", "--format", "bin", "--names", "msopst")
    assert (code, err) == (0, "")
    for i, dtype in ((1, np.float16), (2, np.float32)):
        folder = Path("out") / f"Test_001_sub_case_00{i}"
        x, dy, gamma, mean, rstd, dx = (
            np.fromfile(folder / f"{folder.name}_{n}.bin", dtype)
            for n in (*(f"input_{k}" for k in range(5)), "expect_output_0")
        )
        assert np.abs(x).max() <= 3
        assert (gamma == 1).all()
        assert (mean == 0).all()
        assert 0.5 <= rstd.min() <= rstd.max() <= 2
        truth = reference.group_normalization_grad(
            *(a.reshape(2, 3, 8) for a in (x, dy, gamma)), mean.reshape(2, 3), rstd.reshape(2, 3)
        )
        assert np.array_equal(dx, truth.reshape(-1).astype(dtype))


BAD_LISTS = [
    ("a.csv", "", "no column testcase_name, api_name"),
    ("a.csv", TTK.replace("(2,3,40),(2,3,40),(2,3,40)", "(2,3,40),(2,3,4),(2,3,40)"), "dy: shape (2, 3, 4); accepted: (2, 3, 40)"),
    ("a.csv", TTK.replace("aclnnGroupNormBackward", "aclnnAdd"), "api_name: 'aclnnAdd'; accepted: aclnnGroupNormalizationGrad"),
    ("a.csv", TTK.replace("((2,3,40)", "((2,3,__import__('os'))"), "accepted: a Python tuple"),
    ("a.csv", TTK.replace("'group': 3", "'group': 2"), "group 2; accepted: 3"),
    ("a.csv", TTK.replace("(-1,1)", "(-1,1e999)"), "range of dy: -1.0 to inf; accepted: two finite numbers"),
    ("a.csv", TTK.splitlines()[0], "no case; accepted: one case or more"),
    ("a.csv", TTK[:-40], "accepted: "),
    ("a.json", "[{", "not JSON"),
    ("a.json", "{}", "dict; accepted: a list of cases"),
    ("a.json", "[1]", "int; accepted: an object"),
    *(
        ("a.json", json.dumps(MSOPST).replace("[2, 3]", f"[2, {size}]"), "accepted: whole numbers")
        for size in ("2.7", "1e999", '"3"')
    ),
    ("a.json", json.dumps(MSOPST).replace("[2, 3]", "[2, 4]"), "num_groups: 4; accepted: 3, the second size of x"),
    ("a.json", json.dumps(MSOPST).replace("uniform", "weibull"), "'weibull'; accepted: uniform or normal"),
    ("a.json", json.dumps(MSOPST).replace("[-3, 3]", "[-3, NaN]"), "accepted: two finite numbers"),
    ("a.json", json.dumps(MSOPST).replace("float16", "int8", 1), "dtype 'int8'; accepted: float64"),
    ("a.json", '[{"name": "../x", "op": "group_norm_backward", "shape": [1, 2], "num_groups": 1, "dtype": "float32"}]', "name: '../x'; accepted: letters"),
    ("a.json", '[{"name": "x", "op": "group_norm_backward", "shape": [1, 2], "num_groups": 3, "dtype": "float32"}]', "num_groups: 3; accepted: a divisor of C = 2"),
    ("a.json", '[{"name": "x", "op": "group_norm_backward", "shape": [1, 99999999999999], "num_groups": 1, "dtype": "float32"}]', "at most 2^40 elements"),
    ("a.json", '[{"name": "x", "op": "group_norm_backward", "shape": [1, 2], "num_groups": 1, "dtype": "float32", "seed": NaN}]', "seed: nan; accepted: a whole number"),
    ("a.txt", "", "accepted: a case list that ends in .csv"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "message"), BAD_LISTS)
def test_bad_case_lists(capsys, name, text, message):
    Path(name).write_text(text)
    code, out, err = _run(capsys, "golden", "out", "--cases", name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("groupnorm: error: ")
    assert message in err
    assert os.listdir() == [name]


MISTAKES = [
    ([], "no case; accepted: --case, --cases or --shape"),
    (["--case", "nothing*"], "--case: 'nothing*'; accepted: a name or a pattern of"),
    (["--shape", "2,3"], "accepted: [N, C, *] with --num-groups, or [N, G, *]"),
    (["--shape", "2,4,3", "--num-groups", "3"], "accepted: a divisor of C"),
    (["--case", "tiny", "--names", "msopst"], "--names: msopst with --format npy; accepted: with --format bin"),
    (["--case", "tiny", "--numerics", "ascend910b", "--op", TRUE], "accepted: with group_normalization_grad alone"),
    (["--case", "tiny", "--dtype", "float64"], "dtype: 'float64'; accepted: float32, float16, bfloat16"),
    (["--case", "tiny", "--seed", "-1"], "-1 is not in the range"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=[" ".join(a) for a, _ in MISTAKES])
def test_mistakes(capsys, arguments, message):
    code, out, err = _run(capsys, "golden", "out", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert os.listdir() == []


# Files ------------------------------------------------------------------------------------------------------------------


def test_a_second_run_keeps_what_is_there_and_makes_what_is_not(capsys):
    arguments = ["golden", "out", "--case", "tiny", "--case", "odd", "--dtype", "bfloat16"]
    assert _run(capsys, *arguments)[0] == 0
    manifest = Path("out/manifest.json").read_bytes()
    kept, lost = Path("out/odd-printed-bfloat16-community-s1"), Path("out/tiny-printed-bfloat16-community-s1")
    before = (kept / "x.npy").stat().st_mtime_ns
    for path in lost.iterdir():
        path.unlink()
    lost.rmdir()
    code, out, _ = _run(capsys, *arguments)
    assert (code, "1 made, 1 there already" in out) == (0, True)
    assert (kept / "x.npy").stat().st_mtime_ns == before
    assert Path("out/manifest.json").read_bytes() == manifest
    (kept / "x.npy").write_bytes(b"damaged")
    code, _, err = _run(capsys, *arguments)
    assert (code, "or damaged; accepted: another folder, or --force" in err) == (2, True)
    assert _run(capsys, *arguments, "--force")[0] == 0
    assert Path("out/manifest.json").read_bytes() == manifest


def test_jobs_change_no_byte(capsys):
    for folder, jobs in (("one", 1), ("two", 2)):
        arguments = ["--case", "tiny", "--case", "rank3", "--format", "npz", "--jobs", jobs]
        assert _run(capsys, "golden", folder, *arguments)[0] == 0
    one, two = ({p.relative_to(f): p.read_bytes() for p in Path(f).rglob("*") if p.is_file()} for f in ("one", "two"))
    assert one == two
    assert len(one) == 5


def test_a_full_disk_leaves_nothing(capsys):
    """A limit on the size of files stands for the disk; the write fails in the middle of x."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        code, out, err = _run(capsys, "golden", "out", "--case", "odd")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert os.listdir("out") == []


def test_a_kill_in_the_middle_leaves_whole_cases_alone_and_the_next_run_goes_on(capsys):
    command = [sys.executable, "-m", "groupnorm", "golden", "out"]
    arguments = [a for i in range(8) for a in ("--family", list(data.FAMILIES)[i])] + ["--shape", "2,4,150000"]
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len([n for n in (os.listdir("out") if os.path.isdir("out") else []) if not n.startswith(".")]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not os.path.exists("out/manifest.json")
    cases = [p for p in Path("out").iterdir() if not p.name.startswith(".")]
    assert 2 <= len(cases) < 8
    for case in cases:
        entry = json.loads((case / "case.json").read_text())
        assert all(store.sha256("f", case / held["file"]) == held["sha256"] for held in entry["arrays"].values())
    code, out, _ = _run(capsys, "golden", "out", *arguments)
    assert (code, f"{len(cases)} there already" in out) == (0, True)
    assert sorted(p.name for p in Path("out").iterdir() if p.name.startswith(".")) == []
    assert len(list(store.read_manifest(Path("out/manifest.json")))) == 8


def test_every_input_has_its_shape_and_dtype():
    for op in OUTPUTS:
        for shape in ((0, 3, 4), (2, 3, 0), (1, 3, 1)):
            request = Request("e", op, shape, 3, "float16")
            inputs = data.make_inputs(request)
            arrays = {**inputs, **expected.make_expected(request, inputs)}
            assert set(arrays) == {*INPUTS, *OUTPUTS[op]}
            for name, array in arrays.items():
                assert (array.shape, array.dtype) == (request.shape_of(name), request.dtype_of(name))


def test_adversarial_families_are_what_they_say():
    huge = data.make_inputs(_request(dtype="float16", family="huge"))
    assert float(huge["dy"].max()) * 140 > 65504
    tiny = expected.make_expected(_request(family="tiny"), data.make_inputs(_request(family="tiny")))["dx"]
    assert 0 < np.abs(tiny[tiny != 0]).min() < np.finfo(np.float32).tiny
    constant = data.make_inputs(_request(family="constant"))
    assert np.ptp(constant["x"].reshape(2, 3, -1), axis=2).max() == 0
    assert np.allclose(constant["rstd"], 1e-5**-0.5)

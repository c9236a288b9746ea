"""Comparison of files: bad ones refused, reports whole or not there, figures that hold in any setting."""

from __future__ import annotations

import csv
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from command import run as _run
from compared import made, tensors
from groupnorm.golden import store
from groupnorm.golden.request import PRINTED


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


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
    tensors(golden * 2, golden)
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
    request, _, outputs = made(op=PRINTED, dtype="bfloat16")
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
    tensors(got, golden)
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
    tensors(golden + rng.standard_normal(golden.shape).astype(np.float32) * 1e-4, golden)
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
    tensors(golden * 2, golden)
    _, out, _ = _run(capsys, "compare", "got.npy", "golden.npy")
    assert "\x1b" not in out
    assert "FAIL" in out

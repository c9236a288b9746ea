"""The command line: files in and out, the table, and mistakes on one line with exit code 2."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import groupnorm
from command import run as _run
from conftest import BFLOAT16, ISA_LEVELS, bits
from groupnorm import cases, reference
from groupnorm.cases import Case

CASE = Case("case", (2, 8, 4, 6), 2)
NAMES = ("x", "dy", "gamma", "mean", "rstd")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def _stored(array):
    return array.view(np.uint16) if array.dtype == BFLOAT16 else array


def _write_files(inputs, suffix):
    options = []
    for name, array in inputs._asdict().items():
        if suffix == ".npy":
            np.save(f"{name}.npy", _stored(array))
        else:
            array.tofile(f"{name}.bin")
        options += [f"--{name}", f"{name}{suffix}"]
    return options


@pytest.mark.parametrize("suffix", [".npy", ".bin"])
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16], ids=str)
def test_printed_formula_from_files(capsys, dtype, suffix):
    inputs = cases.grouped(cases.make(CASE, dtype))
    options = _write_files(inputs, suffix)
    shape = ["--shape", ",".join(map(str, inputs.x.shape))] if suffix == ".bin" else []
    code, out, err = _run(capsys, "run", *options, "--dtype", dtype.name, *shape, "-o", f"dx{suffix}")
    assert (code, err) == (0, "")
    raw = np.load("dx.npy") if suffix == ".npy" else np.fromfile("dx.bin", _stored(inputs.x).dtype)
    expected = groupnorm.group_normalization_grad(*(getattr(inputs, n) for n in NAMES))
    assert raw.tobytes() == bits(expected)
    for word in ("2x2x4x4x6", dtype.name, ISA_LEVELS[0], "threads", "ms", "GB/s", "formula gap", "not the gradient"):
        assert word in out


@pytest.mark.parametrize("suffix", [".npy", ".bin"])
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), BFLOAT16, np.dtype(np.float64)], ids=str)
def test_gradient_from_files(capsys, dtype, suffix):
    inputs = cases.make(CASE, dtype)
    options = _write_files(inputs, suffix)
    outputs = [
        f(n)
        for n in ("dx", "dgamma", "dbeta")
        for f in (lambda n: "-o" if n == "dx" else f"--{n}", lambda n: n + suffix)
    ]
    extra = ["--dtype", dtype.name, "--num-groups", 2, *(["--shape", "2x8x4x6"] if suffix == ".bin" else [])]
    code, out, err = _run(capsys, "run", "--op", "group_norm_backward", *options, *outputs, *extra)
    assert (code, err) == (0, "")
    assert "formula gap" not in out
    grads = groupnorm.group_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)
    for name, expected in grads._asdict().items():
        raw = np.load(f"{name}.npy") if suffix == ".npy" else np.fromfile(f"{name}.bin", _stored(expected).dtype)
        assert raw.tobytes() == bits(expected), name


def test_archives_and_statistics_made_from_x(capsys):
    inputs = cases.make(CASE, np.float32)
    np.savez("in.npz", x=inputs.x, dy=inputs.dy, gamma=inputs.gamma)
    code, _, err = _run(capsys, "run", "in.npz", "--op", "group_norm_backward", "--num-groups", 2, "-o", "out.npz")
    assert (code, err) == (0, "")
    _, mean, rstd = groupnorm.group_norm(inputs.x, 2)
    grads = groupnorm.group_norm_backward(inputs.dy, inputs.x, mean, rstd, inputs.gamma)
    with np.load("out.npz") as written:
        assert sorted(written.files) == ["dbeta", "dgamma", "dx"]
        for name in written.files:
            assert bits(written[name]) == bits(getattr(grads, name))
    # The printed formula on [N, C, *] with gamma [C]: regrouped, and dx back in x's shape.
    code, _, err = _run(capsys, "run", "in.npz", "--num-groups", 2, "-o", "dx.npy")
    assert (code, err) == (0, "")
    printed = cases.grouped(inputs._replace(mean=mean, rstd=rstd))
    expected = groupnorm.group_normalization_grad(*(getattr(printed, n) for n in NAMES))
    assert np.load("dx.npy").shape == CASE.shape
    assert bits(np.load("dx.npy")) == bits(expected)


def test_gamma_of_one_has_no_gap(capsys):
    inputs = cases.grouped(cases.make(CASE, np.float32))
    np.savez("in.npz", **inputs._replace(gamma=np.ones_like(inputs.gamma))._asdict())
    code, out, _ = _run(capsys, "run", "in.npz", "-o", "dx.npy")
    assert code == 0
    assert "0 (gamma is 1)" in out
    truth = reference.group_normalization_grad(
        inputs.x, inputs.dy, np.ones_like(inputs.gamma), inputs.mean, inputs.rstd
    )
    assert np.abs(np.load("dx.npy") - truth).max() <= 3e-7 * np.abs(truth).max()


def _broken(name, content):
    with open(name, "wb") as file:
        file.write(content)


def _prepare():
    inputs = cases.grouped(cases.make(CASE, np.float32))
    for name, array in inputs._asdict().items():
        np.save(f"{name}.npy", array)
    np.savez("in.npz", **inputs._asdict())
    np.savez("no_dy.npz", x=inputs.x)
    whole = open("x.npy", "rb").read()  # noqa: SIM115
    _broken("short.npy", whole[:-10])
    _broken("header.npy", whole[:40])
    _broken("empty.npy", b"")
    _broken("text.npy", b"not an array at all")
    _broken("huge.npy", whole.replace(b"(2, 2, 4, 4, 6), }" + 9 * b" ", b"(2000000000, 2, 4, 4, 6), }"))
    _broken("text.npz", b"PK\x03\x04 not an archive")
    _broken("x.bin", b"\0" * 100)
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save("half.npy", inputs.x.astype(np.float16))
    np.save("ints.npy", inputs.x.astype(np.int32))
    np.save("words.npy", np.zeros(4, np.uint16))
    _broken("cut_shape.npy", whole.replace(b"(2, 2, 4, 4, 6), }", b"(2, 2, 4, 4, 6,   "))
    _broken("negative.npy", whole.replace(b"(2, 2, 4, 4, 6), }", b"(2,-2, 4, 4, 6), }"))
    np.savez_compressed("damaged.npz", **inputs._asdict())
    packed = bytearray(open("damaged.npz", "rb").read())  # noqa: SIM115
    packed[80:90] = b"\xff" * 10
    _broken("damaged.npz", packed)
    os.symlink(".", "link")
    np.save("short_gamma.npy", np.ones(2, np.float32))
    os.mkdir("folder")


ALL = [o for n in NAMES for o in (f"--{n}", f"{n}.npy")]
MISTAKES = [
    (["run"], "Missing option '-o' / '--out'"),
    (["run", "-o", "dx.npy"], "x: not given; accepted: --x, or FILE.npz that holds it"),
    (["run", "no_dy.npz", "-o", "dx.npy"], "dy: not given"),
    (["run", "none.npz", "-o", "dx.npy"], "none.npz"),
    (["run", "text.npz", "-o", "dx.npy"], "FILE: text.npz cannot be read as .npz"),
    (["run", "x.npy", "-o", "dx.npy"], "FILE: x.npy cannot be read as .npy: not an archive (a single array goes with its name, as --x FILE)"),
    (["run", *ALL, "--x", "in.npz", "-o", "dx.npy"], "--x: in.npz; accepted: a .npy or .bin file"),
    *((["run", *ALL, "--x", f"{n}.npy", "-o", "dx.npy"], f"x: {n}.npy cannot be read as .npy")
      for n in ("short", "header", "empty", "text", "huge", "objects", "cut_shape", "negative")),
    (["run", "damaged.npz", "-o", "dx.npy"], "FILE: damaged.npz cannot be read as .npz"),
    (["run", "in.npz", "--dtype", "float16", "-o", "dx.npy"], "--dtype: float16, x has dtype float32; accepted: the dtype of x"),
    (["run", "in.npz", "--op", "group_norm_backward", "-o", "a.npy", "--dgamma", "link/a.npy"], "is the file of --out too"),
    (["run", *ALL, "--x", "half.npy", "-o", "dx.npy"], "dy: dtype float32 does not go with the others (x float16"),
    (["run", *ALL, "--x", "ints.npy", "-o", "dx.npy"], "x: dtype int32; accepted"),
    (["run", *ALL, "--x", "words.npy", "-o", "dx.npy"], "x: dtype uint16; accepted: uint16 only as bfloat16, with --dtype bfloat16"),
    (["run", *ALL, "--x", "x.bin", "-o", "dx.npy"], "--x: x.bin has no header; accepted: .bin files with --dtype"),
    (["run", "--x", "x.bin", "--dtype", "float32", "-o", "dx.npy"], "--x: x.bin has no header; accepted: .bin files with --shape"),
    (["run", "--x", "x.bin", "--dtype", "float32", "--shape", "2,8,4,6", "-o", "dx.npy"], "x: x.bin has 100 bytes; accepted: 1536 (float32) for shape (2, 8, 4, 6)"),
    (["run", "--x", "x.bin", "--dtype", "float32", "--shape", "25", "-o", "dx.npy"], "--shape: (25,); accepted: two dimensions and more"),
    (["run", "in.npz", "--shape", "2,b", "-o", "dx.npy"], "'2,b'; accepted: sizes such as 2,8,4,6"),
    (["run", "in.npz", "--dtype", "int8", "-o", "dx.npy"], "'int8' is not one of"),
    (["run", "in.npz", "-o", "dx.txt"], "--out: dx.txt; accepted: a name that ends in .npy, .npz, .bin"),
    (["run", "in.npz", "-o", "nowhere/dx.npy"], "--out: nowhere/dx.npy; accepted: a folder that exists"),
    (["run", "in.npz", "-o", "folder"], "'folder' is a directory"),
    (["run", "in.npz", "-o", "dx.npy", "--dgamma", "g.npy"], "--dgamma: g.npy; accepted: nothing here, the printed formula"),
    (["run", "in.npz", "--op", "group_norm_backward", "-o", "a.npy", "--dgamma", "a.npy"], "is the file of --out too"),
    (["run", "in.npz", "-o", "dx.npy", "--num-groups", "3"], "--num-groups: 3, mean has shape (2, 2); accepted: mean of shape [N, 3]"),
    (["run", "in.npz", "-o", "dx.npy", "--recenter"], "--recenter: accepted with --op group_norm_backward"),
    (["run", "in.npz", "-o", "dx.npy", "--eps", "0.5"], "--eps: accepted where mean and rstd are made from x"),
    (["run", "in.npz", "-o", "dx.npy", "--shape", "1,2,3"], "--shape: accepted with .bin files"),
    (["run", *ALL, "--gamma", "short_gamma.npy", "-o", "dx.npy"], "gamma: shape (2,) with x (2, 2, 4, 4, 6); accepted: x's shape, or [C] with --num-groups"),
    (["run", "in.npz", "-o", "dx.npy", "--num-groups", "0"], "0 is not in the range x>=1"),
    (["run", "in.npz", "-o", "dx.npy", "--threads", "0"], "num_threads: 0; accepted: an int from 1 to 1024"),
    (["run", "in.npz", "-o", "dx.npy", "--eps", "a"], "'a' is not a valid float"),
    (["run", "in.npz", "--op", "nothing", "-o", "dx.npy"], "'nothing' is not one of"),
    (["fly"], "No such command 'fly'"),
    (["run", "--fly"], "No such option"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=[" ".join(a) for a, _ in MISTAKES])
def test_mistakes(capsys, arguments, message):
    _prepare()
    before = sorted(os.listdir())
    code, out, err = _run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("groupnorm: error: ")
    assert message in err
    assert sorted(os.listdir()) == before


def test_a_failed_write_leaves_nothing(capsys, monkeypatch):
    _prepare()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with open("dx.npy", "wb") as file:
        file.write(b"what was there before")
    before = sorted(os.listdir())
    monkeypatch.setattr(np, "save", full)
    code, _, err = _run(capsys, "run", "in.npz", "-o", "dx.npy")
    assert (code, err) == (2, "groupnorm: error: [Errno 28] No space left on device\n")
    assert sorted(os.listdir()) == before
    assert open("dx.npy", "rb").read() == b"what was there before"  # noqa: SIM115


def test_a_kill_in_the_middle_leaves_no_half_file():
    shape = (2, 8, 512, 1024)
    inputs = cases.make(Case("large", shape, 2), np.float32)
    np.savez("in.npz", **inputs._asdict())
    whole = (np.prod(shape) * 4).item()
    for delay in (0.4, 0.6, 0.8):
        process = subprocess.Popen(
            [sys.executable, "-m", "groupnorm", "run", "in.npz", "--op", "group_norm_backward", "-o", "dx.npy"],
            stdout=subprocess.DEVNULL,
        )
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if os.path.exists("dx.npy"):
            assert os.path.getsize("dx.npy") == whole + 128
            os.unlink("dx.npy")


def test_outputs_get_the_permissions_of_new_files(capsys):
    _prepare()
    assert _run(capsys, "run", "in.npz", "-o", "dx.npy")[0] == 0
    with open("plain", "w"):
        pass
    assert os.stat("dx.npy").st_mode == os.stat("plain").st_mode


def test_help_version_and_module():
    command = [sys.executable, "-m", "groupnorm"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"groupnorm {groupnorm.__version__}\n"
    for name in ("run", "doctor"):
        text = subprocess.run([*command, name, "--help"], capture_output=True, text=True, check=True).stdout
        assert "Example:" in text
    bare = subprocess.run(command, capture_output=True, text=True)
    assert bare.returncode == 2
    assert "Commands:" in bare.stdout + bare.stderr


def test_doctor(capsys, monkeypatch):
    code, out, err = _run(capsys, "doctor")
    assert (code, err) == (0, "")
    for word in (groupnorm.__version__, "SIMD", *ISA_LEVELS, "chosen", "threads", "NumPy", "ml_dtypes", "jax"):
        assert word in out
    monkeypatch.setitem(sys.modules, "jax", None)
    assert "missing: ModuleNotFoundError" in _run(capsys, "doctor")[1]
    forced = subprocess.run(
        [sys.executable, "-m", "groupnorm", "doctor"],
        env={**os.environ, "GROUPNORM_ISA": "[/avx1024]", "GROUPNORM_NUM_THREADS": "zero"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "GROUPNORM_ISA=[/avx1024]: cannot run here" in forced.stdout
    assert "GROUPNORM_NUM_THREADS: 'zero'" in forced.stdout


def test_without_its_packages_the_command_says_what_to_install():
    code = "import sys; sys.modules['rich'] = None; from groupnorm.cli import main; main(['doctor'])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.startswith("groupnorm: error: rich is not installed")
    assert result.stderr.endswith("the extra groupnorm[cli]\n")

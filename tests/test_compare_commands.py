"""explain and formula-gap, help, completion, plain output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import groupnorm
from command import run as _run
from groupnorm import cases
from groupnorm.cases import Case
from groupnorm.cli.app import app

NAMES = ("x", "dy", "gamma", "mean", "rstd")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_explain(capsys):
    code, out, _ = _run(capsys, "explain", "161001", "EZ: returned 107002 at 3.5", 0)
    assert code == 0
    assert "161001 ACLNN_ERR_PARAM_NULLPTR\n  likely cause: a tensor or another required pointer is null" in out
    assert "107002 ACL_ERROR_RT_CONTEXT_NULL\n  likely cause: this thread has no context" in out
    assert "0 ACL_SUCCESS" in out
    code, out, _ = _run(capsys, "explain", "999999")
    assert (code, out) == (1, "999999 unknown\n  no header names it\n")
    line = "[2026-12-02 10:11:12.161001] RUNTIME(107000,python) pid 107003: size 123456, returned 561002"
    code, out, _ = _run(capsys, "explain", line)
    assert (code, [row for row in out.splitlines() if row[0] != " "]) == (0, ["561002 ACLNN_ERR_INNER_TILING_ERROR"])
    assert "there are 161002, 161001" in _run(capsys, "explain", "161005")[1]
    code, out, err = _run(capsys, "explain", "what")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "CODE: 'what' has no status of acl or aclnn; accepted: a number" in err


def test_formula_gap(capsys):
    inputs = cases.grouped(cases.make(Case("c", (2, 8, 4, 6), 2), np.float32))
    np.savez("in.npz", **inputs._asdict())
    code, out, err = _run(capsys, "formula-gap", "in.npz", "--json", "gap.json", "--plot", "gap.png")
    assert (code, err) == (0, "")
    gap = groupnorm.formula_gap(*inputs)
    assert json.loads(Path("gap.json").read_text()) == gap._asdict()
    assert f"{gap.max_abs:.6g}" in out
    assert Path("gap.png").read_bytes().startswith(b"\x89PNG")
    ones = inputs._replace(gamma=np.ones_like(inputs.gamma))
    np.savez("ones.npz", **ones._asdict())
    assert _run(capsys, "formula-gap", "ones.npz", "--json", "gap.json")[0] == 0
    assert json.loads(Path("gap.json").read_text())["max_abs"] == 0


def test_formula_gap_of_a_golden_case(capsys):
    assert _run(capsys, "golden", "out", "--case", "odd", "--dtype", "bfloat16", "--format", "bin")[0] == 0
    (case,) = Path("out").glob("*/case.json")
    code, out, err = _run(capsys, "formula-gap", case)
    assert (code, err, "largest" in out) == (0, "", True)


def test_mistakes_of_formula_gap(capsys):
    inputs = cases.grouped(cases.make(Case("c", (2, 8, 4, 6), 2), np.float32))._asdict()
    np.savez("in.npz", **inputs)
    np.savez("few.npz", x=inputs["x"])
    np.savez("odd.npz", **{**inputs, "dy": np.full_like(inputs["dy"], np.nan)})
    np.savez("shape.npz", **{**inputs, "mean": inputs["mean"][:1]})
    Path("text.npz").write_bytes(b"no archive")
    Path("empty.npz").write_bytes(b"")
    for arguments, message in (
        (["few.npz"], "dy: not in few.npz; accepted: an .npz of x, dy"),
        (["odd.npz"], "dy: 192 elements are not finite; accepted: finite numbers".replace("192", "384")),
        (["shape.npz"], "mean: shape (1, 2)"),
        (["text.npz"], "FILE: text.npz cannot be read as .npz"),
        (["empty.npz"], "FILE: empty.npz cannot be read as .npz"),
        (["in.npz", "--plot", "gap.txt"], "--plot: gap.txt; accepted: a name that ends in .png"),
        (["in.npz", "--json", "no/gap.json"], "--json: no/gap.json; accepted: a folder that exists"),
    ):
        before = sorted(os.listdir())
        code, out, err = _run(capsys, "formula-gap", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert message in err
        assert sorted(os.listdir()) == before


@pytest.mark.parametrize("name", app.commands)
def test_every_command_has_help_with_an_example(capsys, name):
    code, out, _ = _run(capsys, name, "--help")
    assert code == 0
    assert "Example:" in out
    assert f"groupnorm {name}" in out


def test_completion():
    for shell in ("bash", "zsh", "fish"):
        done = subprocess.run(
            [sys.executable, "-c", "from groupnorm.cli import main; main([])"],
            env={**os.environ, "_GROUPNORM_COMPLETE": f"{shell}_source"},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, "groupnorm" in done.stdout) == (0, True), (shell, done.stderr)
    done = subprocess.run(
        [sys.executable, "-c", "from groupnorm.cli import main; main([])"],
        env={**os.environ, "_GROUPNORM_COMPLETE": "bash_complete", "COMP_WORDS": "groupnorm co", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
    )
    assert "compare" in done.stdout


def test_no_color():
    """A terminal's width and colours are for terminals; NO_COLOR takes the colours off there too."""
    np.save("a.npy", np.ones((2, 4), np.float32))
    command = [sys.executable, "-m", "groupnorm", "compare", "a.npy", "a.npy"]
    plain = subprocess.run(command, capture_output=True, text=True)
    assert "\x1b" not in plain.stdout
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    coloured = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert "\x1b[1;32m" in coloured.stdout
    none = subprocess.run(command, capture_output=True, text=True, env={**environment, "NO_COLOR": "1"})
    assert "32m" not in none.stdout

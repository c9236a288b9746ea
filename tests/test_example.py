"""The main job of `make run`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_photographs(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: `make test` installs it")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: `make test` installs it")
    result = subprocess.run(
        [sys.executable, ROOT / "examples" / "photographs.py", "--out", tmp_path / "new" / "folder"],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert "2x32x212x320 float32, 8 groups" in result.stdout
    assert "passed" in result.stdout
    picture = tmp_path / "new" / "folder" / "photographs.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 50_000


def test_sharded():
    """Two processes give the bits of one, for samples and channels."""
    pytest.importorskip("torch", reason="torch is not installed: `make test` installs it")
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         ROOT / "examples" / "torch_sharded.py"],
        capture_output=True, text=True, timeout=300, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("none, to the bit") == 8


def test_digits(tmp_path):
    for module in ("torch", "sklearn", "matplotlib"):
        pytest.importorskip(module, reason=f"{module} is not installed: `make test` installs it")
    result = subprocess.run(
        [sys.executable, ROOT / "examples" / "torch_digits.py", "--steps", "60", "--out", tmp_path],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert "replaced: 1, 4, 7" in result.stdout
    rows = re.findall(r"(\w[\w.]+GroupNorm) +│ +([\d.]+) +│ +([\d.]+)% +│ +([\d.]+) ms", result.stdout)
    theirs, ours = (float(loss) for _, loss, *_ in rows)
    assert ours == pytest.approx(theirs, rel=0.25)  # roundings that differ grow with every step
    assert min(float(accuracy) for *_, accuracy, _ in rows) > 50
    assert (tmp_path / "torch_digits.png").read_bytes().startswith(b"\x89PNG")

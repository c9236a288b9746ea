"""The main job of `make run`."""

from __future__ import annotations

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

"""group_norm on sharded tensors, and the module under DDP and FSDP2: in several processes, over gloo."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: `make test` installs it")

WORKER = Path(__file__).with_name("sharded_worker.py")
NAMES = re.findall(r"^@check\ndef (\w+)", WORKER.read_text(), re.MULTILINE)


@pytest.fixture(scope="module", params=[2, 3, 4])
def results(request, tmp_path_factory):
    """What each check of the worker found, in so many processes."""
    folder = tmp_path_factory.mktemp("sharded")
    command = [sys.executable, str(WORKER)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(request.param), str(folder / "store"), str(folder / "results")],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(request.param)
    ]  # fmt: skip
    try:
        outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * request.param, outputs
    return json.loads((folder / "results").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_sharded(results, name):
    assert results[name] == ""


def test_there_are_checks():
    assert len(NAMES) == 9

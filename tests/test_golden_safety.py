"""What must not be lost, trusted, waited for or run: inputs, foreign folders, edited entries, pipes, formulas."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from command import run as _run

CASE = "tiny-printed-float32-community-s1"
MAKE = ("golden", "out", "--case", "tiny")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    np.save("a.npy", np.ones((2, 4, 8), np.float32))
    np.save("b.npy", np.full((2, 4, 8), 2, np.float32))


def _refused(capsys, message, *arguments):
    code, out, err = _run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert message in err


@pytest.mark.parametrize("option", ["--json", "--csv", "--errors-csv", "--html"])
def test_a_report_never_replaces_what_is_read_or_no_file(capsys, option):
    os.link("a.npy", "hard.npy")
    Path("soft.npy").symlink_to("b.npy")
    os.mkfifo("pipe")
    before = {name: Path(name).read_bytes() for name in ("a.npy", "b.npy")}
    for target in ("a.npy", "b.npy", "hard.npy", "soft.npy"):
        _refused(capsys, f"{option}: {target} is read here", "compare", "a.npy", "b.npy", option, target)
    _refused(capsys, "pipe is a pipe; accepted: a regular file", "compare", "a.npy", "b.npy", option, "pipe")
    _refused(capsys, "/dev/null is a device", "compare", "a.npy", "b.npy", option, "/dev/null")
    other = "--json" if option != "--json" else "--csv"
    _refused(capsys, "is the file of", "compare", "a.npy", "b.npy", option, "r", other, "./r")
    assert {name: Path(name).read_bytes() for name in before} == before


def test_a_link_stays_and_what_it_leads_to_is_written(capsys):
    Path("real").mkdir()
    Path("link.json").symlink_to("real/r.json")
    assert _run(capsys, "compare", "a.npy", "a.npy", "--json", "link.json")[0] == 0
    assert Path("link.json").is_symlink()
    assert json.loads(Path("real/r.json").read_text())["passed"]


def test_a_pipe_is_not_waited_for(capsys):
    for name in ("p.npy", "p.npz", "p.bin", "p.json", "p.csv"):
        os.mkfifo(name)
    for got, golden in (("p.npy", "a.npy"), ("a.npy", "p.npy"), ("p.npz", "a.npy"), ("a.npy", "p.json")):
        _refused(capsys, "is a pipe; accepted: a regular file", "compare", got, golden)
    _refused(capsys, "is a pipe", "compare", "p.bin", "p.bin", "--dtype", "float16")
    _refused(capsys, "is a pipe", "golden", "out", "--cases", "p.csv")
    _refused(capsys, "is a pipe", "formula-gap", "p.npz")


def test_force_deletes_nothing_of_others(capsys):
    foreign = Path("out") / CASE
    foreign.mkdir(parents=True)
    (foreign / "thesis.txt").write_text("years")
    _refused(capsys, "has no case.json of groupnorm golden, but thesis.txt", *MAKE, "--force")
    assert (foreign / "thesis.txt").read_text() == "years"
    (foreign / "thesis.txt").rename("thesis.txt")
    assert _run(capsys, *MAKE, "--force")[0] == 0
    Path("thesis.txt").rename(foreign / "thesis.txt")
    _refused(capsys, "holds thesis.txt, which groupnorm golden did not write", *MAKE, "--force")
    assert (foreign / "thesis.txt").read_text() == "years"
    (foreign / "thesis.txt").unlink()
    assert _run(capsys, *MAKE, "--force")[0] == 0
    Path("out/manifest.json").write_text('{"name": "a web page"}')
    _refused(capsys, "no groupnorm-golden-1 manifest", *MAKE)
    assert Path("out/manifest.json").read_text() == '{"name": "a web page"}'


def _empty(entry):
    entry["arrays"] = {}


def _other_hash(entry):
    entry["arrays"]["x"]["sha256"] = "0" * 64


def _other_shape(entry):
    entry["arrays"]["dx"]["shape"] = [1]


def _outside(entry):
    entry["arrays"]["x"]["file"] = "../../a.npy"


@pytest.mark.parametrize("edit", [_empty, _other_hash, _other_shape, _outside])
def test_an_edited_entry_is_not_trusted(capsys, edit):
    assert _run(capsys, *MAKE)[0] == 0
    path = Path("out") / CASE / "case.json"
    entry = json.loads(path.read_text())
    edit(entry)
    path.write_text(json.dumps(entry))
    _refused(capsys, "case.json was edited or damaged", *MAKE)


def test_golden_files_are_those_of_their_manifest(capsys):
    assert _run(capsys, *MAKE)[0] == 0
    Path("dev").mkdir()
    golden = Path("out") / CASE / "dx.npy"
    Path(f"dev/{CASE}.npy").write_bytes(golden.read_bytes())
    assert _run(capsys, "compare", "dev", "out")[0] == 0
    array = np.load(golden)
    array.reshape(-1)[0] += 1
    np.save(golden, array)
    _refused(
        capsys, f"GOLDEN: {golden} is not the file that out/manifest.json was written with", "compare", "dev", "out"
    )


def test_names_that_clash(capsys):
    entry = {"op": "group_norm_backward", "shape": [1, 2], "num_groups": 1, "dtype": "float32"}
    for name in ("manifest.json", "Manifest.JSON", "case.json", "NUL", "com1.x", "end."):
        Path("list.json").write_text(json.dumps([{"name": name, **entry}]))
        _refused(capsys, f"name: '{name}'; accepted:", "golden", "out", "--cases", "list.json")
    Path("list.json").write_text(json.dumps([{"name": "A", **entry}, {"name": "a", **entry}]))
    _refused(capsys, "A and a, which differ in case alone", "golden", "out", "--cases", "list.json")


def test_options_that_would_be_ignored(capsys):
    assert _run(capsys, *MAKE)[0] == 0
    _refused(capsys, "--shape: (2, 4, 8) with b.npy", "compare", "a.npy", "b.npy", "--shape", "2,4,8")
    for option, value in (("--dtype", "float32"), ("--shape", "2,4"), ("--num-groups", "2")):
        _refused(capsys, option, "compare", f"out/{CASE}", "out", option, value)
    again = ("golden", "new", "--cases", "out/manifest.json")
    for option, value in (
        ("--op", "group_norm_backward"),
        ("--seed", "7"),
        ("--family", "ramp"),
        ("--standard", "ulp"),
    ):
        _refused(capsys, option, *again, option, value)
    assert _run(capsys, *again, "--seed", "1")[0] == 0  # what the list says too
    _refused(capsys, "overflow: saturate", "golden", "newer", "--case", "tiny", "--overflow", "saturate")
    _refused(capsys, "--dtype", "formula-gap", f"out/{CASE}/case.json", "--dtype", "float32")


def test_a_name_is_no_formula(capsys):
    Path("got").mkdir()
    Path("golden").mkdir()
    for name in ("=1+1.npy", "+a.npy", "-b.npy", "@c.npy", "plain.npy"):
        np.save(Path("golden") / name, -np.ones((1, 2, 3), np.float32))
        np.save(Path("got") / name, np.ones((1, 2, 3), np.float32))
    assert _run(capsys, "compare", "got", "golden", "--csv", "m.csv", "--errors-csv", "e.csv")[0] == 1
    rows = list(csv.DictReader(Path("m.csv").read_text().splitlines()))
    assert {row["GroundTruth"] for row in rows} == {"'=1+1.npy", "'+a.npy", "'-b.npy", "'@c.npy", "plain.npy"}
    errors = list(csv.DictReader(Path("e.csv").read_text().splitlines()))
    assert all(row["Name"][0] not in "=+-@" and float(row["ExpectOut"]) == -1 for row in errors)


def test_a_tensor_without_elements_passes_and_says_so(capsys):
    np.save("none.npy", np.zeros((0, 4, 8), np.float32))
    code, out, err = _run(capsys, "compare", "none.npy", "none.npy", "--html", "r.html", "--json", "r.json")
    assert (code, err, "no element: nothing to compare" in out) == (0, "", True)
    assert _run(capsys, "golden", "out", "--shape", "2,3,0")[0] == 0
    (case,) = Path("out").glob("*/case.json")
    assert _run(capsys, "compare", case.parent, case)[0] == 0
    assert _run(capsys, "formula-gap", case, "--plot", "gap.png")[0] == 0


def test_a_closed_pipe_is_quiet():
    command = f"{sys.executable} -m groupnorm compare a.npy b.npy | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("141\n", "")


def test_an_interrupt_with_jobs_is_quiet_and_goes_on(capsys):
    arguments = ["golden", "many", "--shape", "2,4,1200000", "--jobs", "2"]
    arguments += [a for name in ("ramp", "tiny", "huge", "constant", "relu", "centred") for a in ("--family", name)]
    process = subprocess.Popen(
        [sys.executable, "-m", "groupnorm", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not [p for p in Path("many").glob("*") if not p.name.startswith(".")]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.strip()) == (130, "", "")
    assert not Path("many/manifest.json").exists()
    assert [p for p in Path("many").iterdir() if p.name.startswith(".")] == []
    code, out, _ = _run(capsys, *arguments)
    assert (code, "there already" in out) == (0, True)

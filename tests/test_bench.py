"""`groupnorm bench`: what it writes, what it refuses, and its arithmetic. Nothing here depends on a time."""

from __future__ import annotations

import json
import math
import random
from importlib.util import find_spec

import numpy as np
import pytest

from groupnorm import _core
from groupnorm.bench import contestant, growth, limit, measure, operands, result, setups, tables
from groupnorm.bench.rivals import RIVALS
from groupnorm.bench.setups import Setup
from groupnorm.cases import LAYERS, Case
from groupnorm.machine import Caches, caches
from test_cli import _run

MIB = 2**20
CACHES = Caches(core=1 * MIB, last=32 * MIB, sharing=2)
NAMED = {case.name: case for case in LAYERS}
FIELDS = {
    "case", "shape", "num_groups", "dtype", "layout", "operator", "threads", "x_bytes", "tensor_bytes",
    "channels_per_group", "limit", "ms", "difference", "left_out",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_quick_run_writes_the_result_and_the_pictures(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(growth, "AXES", {"N": (1, 2), "C": (32,), "HxW": (1, 4)})
    pictures = ["--plot", "out.png", "--growth"] if find_spec("matplotlib") else []
    code, out, _ = _run(
        capsys, "bench", "--quick", "--cases", "tiny", "--rivals", "numpy", "--budget", "0.01",
        "--threads", "1", "--threads", "2", "--json", "out.json", *pictures,
    )  # fmt: skip
    assert code == 0
    for word in ("tiny", "printed", "ours / limit", "numpy / ours", "geometric means", "malloc"):
        assert word in out
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["command"].startswith("groupnorm bench --quick --cases tiny --rivals numpy")
    assert {"date", "machine", "caches", "isa", "versions", "malloc", "load", "rounds", "rivals", "missing", "summary",
            "scaling", "rows"} <= set(found)  # fmt: skip
    assert len(found["rows"]) == 6  # backward, backward-dx and printed, on one thread and on two
    for row in found["rows"]:
        assert set(row) == FIELDS
        assert row["limit"]["ms"] > 0
        assert row["limit"]["kind"] == "triad"
        assert set(row["limit"]["triad"]) == {"cached", "streamed"}
        assert set(row["ms"]["ours"]) == {"given", "allocating"}
        for policies in row["ms"].values():
            for figures in policies.values():
                assert 0 < figures["low"] <= figures["median"] <= figures["high"]
                assert figures["samples"] == 3
        assert row["difference"]["numpy"] < 1e-6
    if pictures:
        for name in ("out.png", "out-growth.png"):
            assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        assert {row["axis"] for row in found["growth"]} == {"N", "C", "HxW", "threads"}


def test_rivals_that_are_missing_are_named_and_the_run_goes_on(capsys, monkeypatch):
    def missing():
        raise ImportError("No module named 'jax'")

    monkeypatch.setitem(RIVALS, "jax", RIVALS["jax"]._replace(version=missing))
    code, out, err = _run(
        capsys, "bench", "--cases", "tiny", "--operator", "printed", "--rivals", "jax,numpy", "--rounds", "3",
        "--budget", "0.01", "--threads", "1",
    )  # fmt: skip
    assert code == 0
    assert "jax is not there and left out: No module named 'jax'" in err
    assert "jax is not there: No module named 'jax'" in out
    assert "numpy / ours" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cases", "nothing*"], "--cases: 'nothing*'; accepted: a name or a pattern of sd_unet_320x64, "),
        (["--rivals", "cudnn"], "'cudnn'; accepted: none, or some of torch,torch.compile,jax,onednn,numpy"),
        (["--threads", "many"], "'many'; accepted: a number, or all"),
        (["--threads", "0"], "num_threads: 0; accepted: an int from 1 to 1024"),
        (["--cases", "tiny", "--dtype", "mixed"], "these options leave no row; accepted: what --list prints"),
        (["--json", "nowhere/a.json"], "--json: nowhere/a.json; accepted: a folder that exists"),
        (["--plot", "a.txt"], "--plot: a.txt; accepted: a name that ends in .png, .svg, .pdf"),
        (["--rounds", "1"], "1 is not in the range x>=3"),
        (["--dtype", "int8"], "'int8' is not one of"),
    ],
)
def test_mistakes(capsys, arguments, message):
    code, out, err = _run(capsys, "bench", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("groupnorm: error: ")
    assert err.count("\n") == 1
    assert message in err


def test_the_list_has_every_case(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = _run(capsys, "bench", "--list")
    assert code == 0
    for case in LAYERS:
        assert case.name in out


def test_the_standard_setups_cover_every_axis():
    every = list(setups.standard())
    assert len({setup.case.name for setup in every}) >= 24
    assert len(set(every)) == len(every)
    assert {setup.dtype for setup in every} == set(setups.DTYPES)
    assert {setup.layout for setup in every} == set(setups.LAYOUTS)
    assert {setup.operator for setup in every} == set(setups.OPERATORS)
    for name, chosen in result.SELECTIONS.items():
        rows = [
            {
                **setup._asdict(),
                "x_bytes": setup.x_bytes,
                "channels_per_group": setup.channels_per_group,
            }
            for setup in every
        ]
        assert sum(map(chosen, rows)) >= 8, name


@pytest.mark.parametrize(
    ("name", "dtype", "layout", "operator", "threads", "kind", "kept"),
    [
        # A group: 2 tensors x 4 channels x 256 x 256 x 4 bytes.
        ("sd_vae_128x256", "float32", "contiguous", "backward", 2, "triad", 2 * 4 * 2**16 * 4),
        # D = 4, 16 bytes: a line holds 4 groups.
        ("sd_vae_128x256", "float32", "channels-last", "backward", 2, "triad", 2 * 16 * 2**16 * 4),
        ("sd_vae_128x256", "float32", "channels-last", "backward", 1, "triad", 2 * 16 * 2**16 * 4),
        # D = 10 in 16 bits, 20 bytes: 16 groups, of 320 bytes, are whole lines.
        ("sd_unet_320x64", "bfloat16", "channels-last", "backward-dx", 1, "triad", 2 * 160 * 2**12 * 2),
        # One group is everything: 64 channels.
        ("layer_norm_64x56", "float32", "contiguous", "backward", 2, "triad", 2 * 64 * 56 * 56 * 4),
        ("rank2_4096", "float32", "contiguous", "backward", 2, "triad", 2 * 32 * 4),
        ("sd_unet_320x64", "float32", "contiguous", "forward", 2, "triad", 10 * 2**12 * 4),
        ("sd_unet_320x64", "float16", "contiguous", "printed", 2, "triad", 3 * 10 * 2**12 * 2),
    ],
)
def test_the_limit_is_the_triad_where_what_is_kept_fits(name, dtype, layout, operator, threads, kind, kept):
    setup = Setup(NAMED[name], dtype, layout, operator)
    assert limit.limit_of(setup, CACHES, threads) == (kind, setup.reads + 1, 1.0, kept, 32 * MIB // threads)


@pytest.mark.parametrize(
    ("layout", "operator", "kind", "factor"),
    [
        ("contiguous", "backward", "5/3 triad", 5 / 3),
        ("contiguous", "backward-dx", "5/3 triad", 5 / 3),
        ("channels-last", "backward", "5/3 triad", 5 / 3),
        ("contiguous", "printed", "7/4 triad", 7 / 4),
        ("contiguous", "forward", "3/2 triad", 3 / 2),
    ],
)
def test_the_limit_reads_all_twice_where_it_does_not_fit(layout, operator, kind, factor):
    setup = Setup(Case("large", (1, 32, 1024, 1024), 2), "float32", layout, operator)
    found = limit.limit_of(setup, CACHES, 2)
    assert (found.kind, found.factor) == (kind, factor)
    assert found.kept_bytes > found.share_bytes


def test_the_edge_between_the_two_limits():
    exactly = Setup(Case("edge", (1, 2, 2**20), 2), "float32", "contiguous", "backward")
    assert limit.kept_bytes(exactly) == 8 * MIB
    assert limit.limit_of(exactly, CACHES._replace(last=16 * MIB), 2).kind == "triad"
    assert limit.limit_of(exactly, CACHES._replace(last=16 * MIB - 2), 2).kind == "5/3 triad"
    # The last cache is shared by those that use it: more threads than it has CPUs have one each of another.
    assert CACHES.share(8) == 16 * MIB
    assert Caches(core=2 * MIB, last=8 * MIB, sharing=64).share(64) == 2 * MIB
    assert caches().last >= caches().core > 0


def _row(name, threads, ours, bound, rivals, **changes):
    figures = {
        key: {policy: {"median": ms, "low": ms, "high": ms, "samples": 3, "calls": 1} for policy, ms in value.items()}
        for key, value in {"ours": ours, **rivals}.items()
    }
    row = {
        "case": name, "shape": [1, 32, 64, 64], "num_groups": 4, "dtype": "float32", "layout": "contiguous",
        "operator": "backward", "threads": threads, "x_bytes": 2**19, "tensor_bytes": 3 * 2**19,
        "channels_per_group": 8, "limit": {"ms": bound, "kind": "triad", "factor": 1.0}, "ms": figures,
        "difference": {}, "left_out": {},
    }  # fmt: skip
    return {**row, **changes}


def test_ratios_and_means_of_a_result_made_by_hand():
    both = {"given": 2.0, "allocating": 4.0}
    rows = [
        _row("a", 1, {"given": 8.0, "allocating": 8.0}, 2.0, {"torch": {"given": 20.0, "allocating": 16.0}}),
        _row("a", 2, both, 1.0, {"torch": {"given": 20.0, "allocating": 16.0}, "numpy": {"allocating": 40.0}}),
        _row("b", 2, both, 0.5, {"torch": {"allocating": 4.0}}, dtype="mixed", layout="channels-last",
             x_bytes=2**30, tensor_bytes=2**31),
    ]  # fmt: skip
    assert result.share_of_limit(rows[1]) == 2
    assert result.against(rows[1], "torch", "given") == 8  # its faster way, although it allocates
    assert result.against(rows[1], "torch", "allocating") == 4
    assert result.against(rows[2], "numpy", "given") is None

    means = {(entry["selection"], entry["threads"]): entry for entry in result.summary(rows)}
    every = means["all", 2]
    assert every["rows"] == 2
    assert math.isclose(every["ours / limit"], math.sqrt(2 * 4))
    assert math.isclose(every["rivals / ours"]["torch"]["given"], math.sqrt(8 * 2))
    assert math.isclose(every["rivals / ours"]["torch"]["allocating"], math.sqrt(4 * 1))
    assert every["rivals / ours"]["numpy"] == pytest.approx({"rows": 1, "given": 20, "allocating": 10})
    assert means["channels-last, 16-bit, D < 16", 2]["rows"] == 1
    assert means["x of 1 MiB and less", 2]["ours / limit"] == 2
    assert means["x of 1 MiB and less", 1]["ours / limit"] == 4
    assert ("channels-last, 16-bit, D < 16", 1) not in means

    assert result.scaling(rows, 32 * MIB) == {"threads": 2, "rows": 1, "speedup": 4.0}
    assert result.scaling(rows[1:], 32 * MIB) is None
    assert result.geometric_mean([]) is None


def test_notes_say_what_makes_figures_worth_little():
    found = {"machine": "m", "isa": "i", "malloc": "x", "rounds": 3, "date": "d", "load": 9.0, "scaling": None,
             "missing": {"jax": "no jax"}, "rows": []}  # fmt: skip
    text = " ".join(tables.notes(found))
    assert "busy (load 9.0" in text
    assert "jax is not there: no jax" in text
    assert "busy" not in " ".join(tables.notes({**found, "load": 0.1}))


INSTALLED, _ = measure.available(RIVALS, list(RIVALS))


@pytest.mark.parametrize("name", [name for name in INSTALLED if name != "torch.compile"])
@pytest.mark.parametrize("operator", setups.OPERATORS)
@pytest.mark.parametrize("dtype", setups.DTYPES)
def test_rivals_compute_the_same(name, dtype, operator):
    for shape, layout in (((2, 20, 8, 9), "contiguous"), ((2, 20, 8, 9), "channels-last"), ((6, 24), "contiguous")):
        if operator == "printed" and (layout != "contiguous" or dtype == "mixed" or len(shape) == 2):
            continue
        made = operands.make(Setup(Case("small", shape, 2), dtype, layout, operator))
        threads = _core.default_threads()
        ours = contestant.ours(made, threads)
        expected = ours["given"].result(ours["given"].call())
        try:
            contestants = RIVALS[name].prepare(made, threads)
            results = [one.result(one.call()) for one in contestants.values()]
        except contestant.Unable:
            if name != "onednn":  # which knows neither float16 on most CPUs nor all operators
                raise
            continue
        for found in results:
            assert measure._difference(found, expected) <= measure.LARGEST_DIFFERENCE


def test_a_rival_that_computes_something_else_is_left_out():
    def wrong(made, _threads):
        return {"allocating": contestant.Contestant(lambda: made.x, lambda x: x)}

    setup = Setup(Case("small", (2, 8, 5), 2), "float32", "contiguous", "backward")
    rivals = {"wrong": contestant.Rival("wrong", lambda: "1", wrong)}
    (row,) = measure.measure(setup, measure.Options(3, 0.01, (1,), rivals), random.Random(1))
    assert "wrong" not in row["ms"]
    assert row["left_out"]["wrong"].startswith("its result is off by")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reads", [1, 2, 3])
@pytest.mark.parametrize("size", [0, 1, 7, 64, 4097, 300_003])
def test_the_triad_adds(size, reads, stream):
    """On the memory of whole words of any number and alignment; no byte beyond them is written."""
    rng = np.random.default_rng(1)
    inputs = [rng.integers(0, 1000, size + 3, np.uint32)[3:] for _ in range(reads)]
    output = np.full(size + 4, 77, np.uint32)
    addresses = [_core.address(array) for array in inputs] + [0] * (3 - reads)
    for threads in (1, 2):
        output[:] = 77
        _core.triad(*addresses, output.ctypes.data + 4, 4 * size, stream, threads)
        assert (output[1 : size + 1] == sum(inputs)).all()
        assert output[0] == 77
        assert (output[size + 1 :] == 77).all()


def test_torch_compile_runs_or_says_why(monkeypatch):
    if "torch.compile" not in INSTALLED:
        pytest.skip("no torch, or no compiler for it")
    setup = Setup(Case("small", (2, 8, 40), 2), "float32", "contiguous", "backward")
    (row,) = measure.measure(
        setup, measure.Options(3, 0.01, (1,), {"torch.compile": RIVALS["torch.compile"]}), random.Random(1)
    )
    assert "torch.compile" in row["ms"] or "torch.compile" in row["left_out"]
    from groupnorm.bench.rivals import torch

    monkeypatch.setattr(torch, "COMPILE_LIMIT", 1e-3)
    with pytest.raises(contestant.Unable, match="not compiled within"):
        torch.COMPILED.prepare(operands.make(setup._replace(case=Case("other", (2, 8, 41), 2))), 1)


def test_help_names_an_example(capsys):
    assert "Example:" in _run(capsys, "bench", "--help")[1]

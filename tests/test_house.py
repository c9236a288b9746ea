"""Rules of the house that a machine can check: imports, SIMD levels, symbols, sizes of files."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import groupnorm
from conftest import ISA_LEVELS
from groupnorm import _core

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "groupnorm"

# Imports go one way, from the first to the last.
ROOMS = [
    "machine",
    "_core",
    "spec",
    "files",
    "reference",
    "cases",
    "tolerance",
    "arrays",
    "threads",
    "memory",
    "numpy",
    "gap",
]


def _python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )


def test_import_brings_numpy_and_nothing_heavier():
    result = _python("import sys; import groupnorm; print(*sorted({m.partition('.')[0] for m in sys.modules}))")
    assert result.returncode == 0, result.stderr
    loaded = set(result.stdout.split())
    assert {"groupnorm", "numpy"} <= loaded
    heavy = {
        "torch",
        "jax",
        "triton",
        "rich",
        "click",
        "matplotlib",
        "ml_dtypes",
        "scipy",
        "sklearn",
        "PIL",
        "hypothesis",
    }
    assert not loaded & heavy


def test_imports_go_one_way():
    for path in PACKAGE.glob("*.py"):
        if path.stem not in ROOMS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or node.level != 1:
                continue
            names = [node.module] if node.module else [alias.name for alias in node.names]
            for name in names:
                assert ROOMS.index(name) < ROOMS.index(path.stem), f"{path.name} imports {name}"


@pytest.mark.parametrize(("room", "more"), [("aclnn", set()), ("triton", set()), ("torch", {"triton"})])
def test_a_frontend_is_a_room_of_its_own(room, more):
    for path in (PACKAGE / room).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 2:
                names = [node.module] if node.module else [alias.name for alias in node.names]
                assert set(names) <= {"_core", "arrays", "spec"} | more, f"{path.name} imports {names}"


# What a package may import of the others; `files` and the rooms of ROOMS are open to all of them.
PACKAGES = {"golden": {"golden"}, "compare": {"golden", "compare"}}


@pytest.mark.parametrize("room", PACKAGES)
def test_golden_comes_before_compare_and_both_before_the_command_line(room):
    for path in (PACKAGE / room).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 2:
                names = [node.module] if node.module else [alias.name for alias in node.names]
                for name in names:
                    first = name.partition(".")[0]
                    assert first in PACKAGES[room] | set(ROOMS), f"{path.name} imports {name}"


# What a room of csrc may include of the others.
NEIGHBOURS = {
    "core": set(),
    "acl": set(),
    "nnopbase": {"acl"},
    "aclnn": {"core", "nnopbase"},
    "python": {"core"},
    "torch": {"core", "python"},
}


@pytest.mark.parametrize("room", NEIGHBOURS)
def test_rooms_of_the_core_and_of_acl_keep_to_their_neighbours(room):
    for path in (ROOT / "csrc" / room).rglob("*"):
        if not path.is_file():
            continue
        text = path.read_text()
        assert set(re.findall(rf'#include "({"|".join(NEIGHBOURS)})/(?!acl)', text)) <= NEIGHBOURS[room] | {room}, path
        if room == "core":
            assert not re.search(r"#include\s+[<\"](Python|nanobind|acl|aclnn)", text), path
        if room in ("acl", "nnopbase"):
            assert not re.search(r"group_?norm[A-Z_]|GroupNorm|xhat|gamma", text.replace("groupnorm_host", "")), path


def test_no_file_is_a_warehouse():
    for pattern in ("src/**/*.py", "csrc/**/*.cc", "csrc/**/*.h"):
        for path in ROOT.glob(pattern):
            assert len(path.read_text().splitlines()) <= 400, path


def test_nothing_is_made_at_first_use():
    """A child forked in the middle of another thread's first use would wait forever: all is made at load."""
    for path in sorted((ROOT / "csrc").rglob("*")):
        if path.suffix not in {".cc", ".h"}:
            continue
        source = path.read_text()
        for line in re.findall(r"^ +static (?!constexpr|std::atomic)[^()\n]*[={].*$", source, re.MULTILINE):
            made = re.match(r" +static (\w+)\* const \w+ = new \1;$", line)
            made_at_load = made and f"= {made[1]}::get();" in source
            # Templates, used by the tables below; and a table of constants that is filled in later.
            assert made_at_load or path.name in {"handles.h", "thread_state.h", "host.cc"}, line
        for table in re.findall(r"^Handles<.*& (\w+)\(\) \{", source, re.MULTILINE):
            assert f"= {table}();" in source, table


@pytest.mark.parametrize("level", ISA_LEVELS)
def test_environment_forces_a_level(level):
    result = _python("from groupnorm import _core; print(_core.current_isa())", GROUPNORM_ISA=level)
    assert result.stdout.strip() == level, result.stderr


@pytest.mark.parametrize("level", ["avx1024", "AVX2", *(n for n, c, s in _core.isa_list() if not (c and s))])
def test_an_impossible_level_raises_and_says_what_is_possible(level):
    result = _python(
        "import numpy as np, groupnorm; x = np.ones((1, 2, 2), 'f4'); s = np.ones((1, 1), 'f4')\n"
        "try:\n  groupnorm.group_norm_backward(x, x, s, s)\n"
        "except RuntimeError as error:\n  print(error)",
        GROUPNORM_ISA=level,
    )
    assert f"GROUPNORM_ISA: {level!r}; accepted: {', '.join(ISA_LEVELS)}" in result.stdout, result.stderr


def test_levels_stand_best_first():
    assert [name for name, *_ in _core.isa_list()] == ["avx512", "avx2", "neon", "scalar"]
    assert ISA_LEVELS[-1] == "scalar"
    assert not _core.select_isa("none")
    assert _core.select_isa(None)
    if "GROUPNORM_ISA" not in os.environ:
        assert _core.current_isa() == ISA_LEVELS[0]


def test_a_level_exports_its_table_alone(tmp_path):
    """An inline function compiled for AVX-512 must never become everybody's copy."""
    compiler, nm = shutil.which("g++") or shutil.which("c++"), shutil.which("nm")
    assert compiler, "a C++ compiler, which the build needs too"
    assert nm, "nm, which comes with the compiler"
    flags = {
        "avx2": ["-mavx2", "-mfma", "-mf16c"],
        "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"],
    }
    for level in set(ISA_LEVELS) - {"scalar"}:
        compiled = tmp_path / f"{level}.o"
        source = ROOT / "csrc" / "core" / "isa" / f"{level}.cc"
        # Without optimization nothing is inlined away: what could leak does.
        command = [
            compiler,
            "-std=c++17",
            "-O0",
            "-ffp-contract=off",
            *flags.get(level, []),
            "-c",
            source,
            "-o",
            compiled,
        ]
        subprocess.run(command, check=True, capture_output=True)
        table = subprocess.run(
            [nm, "-C", "--defined-only", "--extern-only", compiled], check=True, capture_output=True, text=True
        )
        names = [line.split(maxsplit=2)[2] for line in table.stdout.splitlines()]
        assert names == [f"groupnorm::k{level.capitalize()}Table"]


def test_public_names_have_docstrings_and_the_version_is_the_packages():
    for name in groupnorm.__all__:
        assert getattr(groupnorm, name).__doc__, name
    assert f'version = "{groupnorm.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"## {groupnorm.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_sizes_that_no_memory_has_are_refused():
    with pytest.raises(ValueError, match="out of range"):
        _core.group_norm_backward(0, 0, 0, 0, 0, 2**31, 2**31, 2**31, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, False, 0, 1.0, 1)


def test_more_than_two_to_the_31_elements():
    """Periodic small integers: sums are exact, so the long channel has the means and the dx of one period."""
    length = 2**30 + 2**20
    if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 8 * 2**30:
        pytest.skip("needs 8 GiB of free memory: x alone has 4")
    period = (np.arange(2 * 64).reshape(1, 2, 64) * 7 % 11 - 5).astype(np.float16)
    mean, rstd = np.full((1, 1), 0.25, np.float16), np.full((1, 1), 0.5, np.float16)
    expected = groupnorm.group_norm_backward(period, period, mean, rstd).dx
    x = np.empty((1, 2, length), np.float16)
    x.reshape(2, -1, 64)[...] = period.reshape(2, 1, 64)
    dx = groupnorm.group_norm_backward(x, x, mean, rstd, output_mask=(True, False, False), out=(x, None, None)).dx
    assert dx.size > 2**31
    assert (dx.reshape(2, -1, 64) == expected.reshape(2, 1, 64)).all()

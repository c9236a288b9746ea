"""The Triton kernels through triton-ascend to Linalg and through AscendNPU-IR, without an NPU: `make test-ascend`.

The last step, CANN's closed assembler, is not there: a stand-in of its name copies its input, so that the exit code
tells of everything before it, on-chip memory planning included.
"""

import os
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

try:
    distribution("triton-ascend")
except PackageNotFoundError:
    pytest.skip("triton-ascend is not installed: `make test-ascend` installs it", allow_module_level=True)

from groupnorm.triton import CHIPS, compile, variants

NPU = "npu:Ascend910B3"
STAND_IN = """#!/bin/sh
while [ $# -gt 0 ]; do
  if [ "$1" = -o ]; then out="$2"; shift; elif [ -f "$1" ]; then in="$1"; fi
  shift
done
[ -n "$in" ] && cp "$in" "$out"
"""


@pytest.fixture(autouse=True)
def assembler(tmp_path, monkeypatch):
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "hivmc").write_text(STAND_IN)
    (tools / "hivmc").chmod(0o755)
    files = distribution("ascendnpu-ir").files
    compiler = next(Path(f.locate()) for f in files if f.name == "bishengir-compile")
    monkeypatch.setenv("PATH", f"{tools}:{compiler.parent}:{os.environ['PATH']}")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_variant_lowers_and_fits_the_unified_buffer(dtype, tmp_path):
    target, seen = compile.target_of(NPU), 0
    for problem, plan, schedule in variants.variants(CHIPS[NPU]):
        if problem.dtype != dtype:
            continue
        for step in schedule.steps:
            linalg = compile.linalg_of(step, problem, target)
            assert "linalg." in linalg, (variants.name_of(problem, plan), step.kernel)
            folder = tmp_path / str(seen)
            folder.mkdir()
            assert "hivm" in compile.through_npu_compiler(linalg, target, folder)
            seen += 1
    assert seen >= 12


def test_a_tile_too_large_for_the_unified_buffer_is_refused(tmp_path):
    target = compile.target_of(NPU)
    problem, plan, _ = next(iter(variants.variants(CHIPS[NPU])))
    step = variants.schedule_of(problem, plan._replace(block_l=65536)).steps[0]
    with pytest.raises(RuntimeError, match="ub overflow"):
        compile.through_npu_compiler(compile.linalg_of(step, problem, target), target, tmp_path)

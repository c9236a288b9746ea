"""The Linalg that triton-ascend makes of a kernel, compiled for this CPU by MLIR and clang, and called.

It covers numbers: neither what AscendNPU-IR does with it, nor on-chip memory, nor races.
"""

import ctypes
import re
import shutil
import subprocess

import numpy as np
import pytest

# `apt install mlir-19-tools clang-19`; a later version has other names for some passes.
TOOLS = {name: shutil.which(f"{name}-19") for name in ("mlir-opt", "mlir-translate", "clang")}
PASSES = (
    "--convert-elementwise-to-linalg",
    "--one-shot-bufferize=bufferize-function-boundaries allow-return-allocs-from-loops",
    "--buffer-deallocation-pipeline",
    "--convert-bufferization-to-memref",
    "--convert-linalg-to-loops",
    "--expand-strided-metadata",
    "--lower-affine",
    "--convert-scf-to-cf",
    "--convert-math-to-llvm",
    "--arith-expand=include-bf16=true",
    "--convert-math-to-libm",
    "--convert-arith-to-llvm",
    "--convert-index-to-llvm",
    "--finalize-memref-to-llvm",
    "--convert-func-to-llvm",
    "--convert-cf-to-llvm",
    "--reconcile-unrealized-casts",
)
# MLIR's runtime library has it; here it stands alone. An unranked memref is its rank and a pointer to
# {allocated, aligned, offset, sizes[rank], strides[rank]}.
MEMREF_COPY = r"""
#include <stdint.h>
#include <string.h>
typedef struct { int64_t rank; void* descriptor; } Unranked;
typedef struct { char* allocated; char* aligned; int64_t offset; int64_t sizes[]; } Descriptor;

static void copy(int64_t rank, int64_t size, const char* from, const int64_t* from_strides, char* to,
                 const int64_t* to_strides, const int64_t* sizes) {
  if (rank == 0) {
    memcpy(to, from, size);
    return;
  }
  for (int64_t i = 0; i < sizes[0]; ++i) {
    copy(rank - 1, size, from + i * from_strides[0] * size, from_strides + 1, to + i * to_strides[0] * size,
         to_strides + 1, sizes + 1);
  }
}

void memrefCopy(int64_t size, Unranked* source, Unranked* target) {
  const Descriptor *from = source->descriptor, *to = target->descriptor;
  copy(source->rank, size, from->aligned + from->offset * size, from->sizes + source->rank,
       to->aligned + to->offset * size, to->sizes + target->rank, from->sizes);
}
"""


def require_tools():
    """Skips a test where they are not."""
    missing = [f"{name}-19" for name, path in TOOLS.items() if path is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed; accepted: Debian's mlir-19-tools and clang-19")


def _run(name, *arguments):
    done = subprocess.run([TOOLS[name], *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{name}: {done.stderr[-3000:]}"


def compiled(linalg, kernel, folder):
    """A kernel as a function of this process."""
    source, lowered, code = folder / "kernel.mlir", folder / "lowered.mlir", folder / "kernel.ll"
    runtime, library = folder / "memref_copy.c", folder / "kernel.so"
    # What only an NPU's compiler knows: attributes of its dialects.
    source.write_text(re.sub(r" ?\{(tt\.tensor_kind = \d+ : i32|hivm\.\w+)\}", "", linalg))
    runtime.write_text(MEMREF_COPY)
    _run("mlir-opt", source, *PASSES, "-o", lowered)
    _run("mlir-translate", "--mlir-to-llvmir", lowered, "-o", code)
    flags = ("-O2", "-march=native", "-ffp-contract=off", "-Wno-override-module", "-shared", "-fPIC")
    _run("clang", *flags, code, runtime, "-o", library, "-lm")
    function = getattr(ctypes.CDLL(str(library)), kernel)
    function.restype = None
    return function


def memref(array):
    """A memref of one dimension as the arguments that it is passed as."""
    address = ctypes.c_void_p(0 if array is None else array.ctypes.data)
    size = 0 if array is None else array.size
    return [address, address, ctypes.c_int64(0), ctypes.c_int64(size), ctypes.c_int64(1)]


def run_step(function, step, names, operands):
    """All programs of a step, one after another. `names`: the kernel's arguments; arrays are operands, flat, written
    in place."""
    arguments = memref(None) + memref(None)  # a lock and a workspace of the NPU's, which these kernels do not use
    for name in names:
        if name in step.pointers:
            if step.pointers[name] is not None:
                arguments += memref(operands[step.pointers[name]])
        elif name in step.sizes:
            value = step.sizes[name]
            arguments.append(ctypes.c_float(value) if isinstance(value, float) else ctypes.c_int32(value))
    for program in range(step.programs):
        grid = (step.programs, 1, 1, program, 0, 0)
        function(*arguments, *(ctypes.c_int32(i) for i in grid))


def workspace(schedule):
    """Its parts, of NaN: what nothing has written is read as that."""
    return {name: np.full(count, np.nan, np.float32) for name, count in schedule.workspace.items()}

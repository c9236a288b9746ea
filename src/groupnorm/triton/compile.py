"""Kernels compiled ahead of time, for devices that need not be there, and what their code says of itself."""

from __future__ import annotations

import inspect
import math
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from .launch import INTERPRETED, KERNELS, options_of
from .plan import Chip, Problem
from .schedule import Step

_TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
# triton-ascend 3.2 names constants, where Triton has had their places since 3.3.
_BY_NAME = "constexprs" not in inspect.signature(ASTSource.__init__).parameters
_WAVE32 = ("gfx10", "gfx11", "gfx12")


class Report(NamedTuple):
    """What a compiled kernel takes: registers of a thread, spilled bytes or registers, bytes of shared memory of a
    program, the widest global load and store in bits, the programs a unit can hold, as a share of its threads."""

    kernel: str
    registers: int
    spills: int
    shared: int
    load_bits: int
    store_bits: int
    occupancy: float


def target_of(name: str) -> GPUTarget:
    """`cuda:90`, `hip:gfx942`, `npu:Ascend910B3` as Triton's target."""
    backend, _, arch = name.partition(":")
    if backend == "cuda" and arch.isdigit():
        return GPUTarget("cuda", int(arch), 32)
    if backend == "hip" and arch.startswith("gfx"):
        return GPUTarget("hip", arch, 32 if arch.startswith(_WAVE32) else 64)
    if backend == "npu" and arch:
        return GPUTarget("npu", arch, 0)
    raise ValueError(f"target: {name!r}; accepted: cuda:CC such as cuda:90, hip:ARCH such as hip:gfx942, npu:SOC")


def operand_types(problem: Problem) -> dict[str, str]:
    """The dtype behind each operand of a schedule, by name."""
    data, stats = problem.dtype, problem.stats
    parameter = problem.gamma or stats
    types = dict.fromkeys(("x", "dy", "dx", "y"), data)
    types |= dict.fromkeys(("mean", "rstd"), stats)
    types |= {"gamma": data if problem.operator == "printed" else parameter, "beta": problem.beta or parameter}
    types |= {"dgamma": parameter, "dbeta": parameter}
    if problem.operator == "forward":
        types |= {"mean": "float32", "rstd": "float32"}
    return types


def source_of(step: Step, types: Mapping[str, str], *, aligned: bool = True) -> ASTSource:
    """The kernel of a step with the types, sizes' widths and divisibilities that a launch would find.

    `aligned`: all pointers are multiples of 16 bytes, as those of fresh allocations are.
    """
    if INTERPRETED:
        raise RuntimeError("TRITON_INTERPRET: 1; accepted: unset, to compile")
    kernel = KERNELS[step.kernel]
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for i, name in enumerate(kernel.arg_names):
        if name in step.pointers:
            operand = step.pointers[name]
            if operand is None:
                signature[name] = "constexpr"
                constants[(i,)] = None
                continue
            signature[name] = "*" + _TYPES[types.get(operand, "float32")]
            if aligned:
                attributes[(i,)] = [["tt.divisibility", 16]]
        elif name in step.constants:
            signature[name] = "constexpr"
            constants[(i,)] = step.constants[name]
        else:
            size = step.sizes[name]
            if isinstance(size, float):
                signature[name] = "fp32"
            else:
                signature[name] = "i32" if size < 2**31 else "i64"
    if _BY_NAME:
        values = {kernel.arg_names[i]: value for (i,), value in constants.items()}
        return ASTSource(kernel, {n: t for n, t in signature.items() if t != "constexpr"}, values)
    return ASTSource(kernel, signature, constants, attributes)


def compile_step(step: Step, problem: Problem, target: GPUTarget, *, aligned: bool = True) -> Any:
    """Triton's compiled kernel."""
    options = options_of(target.backend, step.warps, target.warp_size)
    return triton.compile(source_of(step, operand_types(problem), aligned=aligned), target=target, options=options)


def _widest(text: str, pattern: str, width: Any) -> int:
    return max((width(match) for match in re.finditer(pattern, text)), default=0)


def _cuda_resources(compiled: Any) -> tuple[int, int]:
    """Registers and spilled bytes, as the assembler of PTX counts them."""
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "kernel.ptx"
        source.write_text(compiled.asm["ptx"])
        architecture = re.search(r"\.target (sm_\w+)", compiled.asm["ptx"])
        assert architecture
        for name in ("ptxas-blackwell", "ptxas"):
            command = [str(folder / name), "-v", f"-arch={architecture[1]}", str(source), "-o", os.devnull]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if done.returncode == 0:
                break
        else:
            raise RuntimeError(f"ptxas: {done.stderr.strip()}")
    registers = re.search(r"Used (\d+) registers", done.stderr)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    assert registers
    assert spills
    return int(registers[1]), int(spills[1]) + int(spills[2])


def report(compiled: Any, step: Step, target: GPUTarget, chip: Chip) -> Report:
    """What the code of a compiled kernel says: PTX and its assembler's count, or AMD's assembly."""
    shared = int(compiled.metadata.shared)
    threads = step.warps * 32
    if target.backend == "cuda":
        text = compiled.asm["ptx"]
        registers, spills = _cuda_resources(compiled)

        def width(match: re.Match[str]) -> int:
            return int(match[1] or 1) * int(match[2])

        load = _widest(text, r"ld\.global(?:\.[\w:]+?)*?(?:\.v(\d))?\.[bfu](\d+)", width)
        store = _widest(text, r"st\.global(?:\.[\w:]+?)*?(?:\.v(\d))?\.[bfu](\d+)", width)
        taken = math.ceil(registers / 8) * 8 * threads
    else:
        text = compiled.asm["amdgcn"]
        counted = re.search(r"\.vgpr_count:\s+(\d+)", text)
        spilled = re.search(r"\.vgpr_spill_count:\s+(\d+)", text)
        assert counted
        assert spilled
        registers, spills = int(counted[1]), int(spilled[1])

        def width(match: re.Match[str]) -> int:
            return {"": 32, "x2": 64, "x3": 96, "x4": 128, "b32": 32, "b64": 64, "b96": 96, "b128": 128}.get(
                match[1], 16
            )

        kinds = r"_(?:dword)?(x[234]|b\d+|ushort|ubyte|short|byte|short_d16\w*|d16\w*|)\b"
        load = _widest(text, r"(?:global|buffer)_load" + kinds, width)
        store = _widest(text, r"(?:global|buffer)_store" + kinds, width)
        taken = math.ceil(registers / 8) * 8 * threads
    held = min(chip.registers // taken, chip.max_threads // threads, 32)
    return Report(step.kernel, registers, spills, shared, load, store, held * threads / chip.max_threads)


def linalg_of(step: Step, problem: Problem, target: GPUTarget) -> str:
    """What triton-ascend lowers a step to for an NPU: MLIR of the Linalg dialect, for which it needs no device."""
    from triton._C.libtriton import ir
    from triton.backends.ascend.compiler import AscendBackend, make_ttir, ttir_to_linalg

    backend = AscendBackend(target)
    options = backend.parse_options({})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = source_of(step, operand_types(problem))
    module = source.make_ir(options, backend.get_codegen_implementation(), backend.get_module_map(), context)
    metadata = {"hash": source.hash(), "target": target, **options.__dict__}
    lowered = ttir_to_linalg(make_ttir(module, metadata, options), metadata, options, named_ops=True)
    return lowered if isinstance(lowered, str) else str(lowered)


def through_npu_compiler(linalg: str, target: GPUTarget, folder: Path) -> str:
    """AscendNPU-IR's whole pipeline, memory planning on chip included, by `bishengir-compile` of PATH; what it gives
    the closed assembler (`hivmc`, CANN's or a stand-in) comes back. RuntimeError where the pipeline refuses."""
    compiler = shutil.which("bishengir-compile")
    if compiler is None:
        raise RuntimeError("bishengir-compile: not on PATH; accepted: that of the package ascendnpu-ir, or of CANN")
    source, result = folder / "kernel.mlir", folder / "kernel"
    source.write_text(linalg)
    flags = ("--enable-hfusion-compile=true", "--enable-hivm-compile=true", "--enable-triton-kernel-compile=true")
    command = [compiler, str(source), f"--target={target.arch}", *flags, "-o", str(result)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"bishengir-compile: {done.stderr.strip()[-2000:]}")
    found = [file for file in folder.iterdir() if file.name.startswith("kernel") and file != source]
    return found[0].read_text(errors="replace") if found else ""

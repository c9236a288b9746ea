"""`groupnorm doctor`: what this installation is and what it would use."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import click
import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

import groupnorm

from .. import _core, aclnn
from ..machine import cpu_name
from ..threads import get_num_threads

# What each optional package is for.
OPTIONAL = {
    "ml_dtypes": "bfloat16 NumPy arrays",
    "torch": "groupnorm.torch; CPU tensors through DLPack; a rival in benchmarks, a second opinion in tests",
    "jax": "CPU arrays through DLPack; a rival in benchmarks",
    "triton": "the kernels for GPUs and NPUs",
    "matplotlib": "pictures of benchmarks and examples",
    "sklearn": "photographs of the examples",
}


def _threads() -> str:
    try:
        count = str(get_num_threads())
    except ValueError as error:
        return f"error: {error}"
    asked = os.environ.get("GROUPNORM_NUM_THREADS")
    return f"{count} (GROUPNORM_NUM_THREADS)" if asked else f"{count} (CPUs this process may use)"


def _levels() -> str:
    words = []
    chosen = _core.current_isa()
    for name, compiled, supported in _core.isa_list():
        state = "chosen" if name == chosen else "available"
        if not compiled:
            state = "not compiled into this build"
        elif not supported:
            state = "not supported by this CPU"
        words.append(f"{name}: {state}")
    forced = os.environ.get("GROUPNORM_ISA")
    if forced:
        words.append(f"GROUPNORM_ISA={forced}" + ("" if chosen else ": cannot run here"))
    return "\n".join(words)


def _acl() -> str:
    try:
        library = aclnn.load()
    except (OSError, RuntimeError) as error:
        return f"none: {error}"
    return f"{library.kind} libraries of {library.prefix}\n({library.why})"


def _triton() -> str:
    try:
        from ..triton.launch import INTERPRETED
        from ..triton.plan import CHIPS
    except ImportError as error:
        return f"none: {error}"
    except Exception as error:  # whatever a broken installation raises is the answer
        return f"none: {type(error).__name__}: {error}"
    import torch

    words = [f"{target}: {chip.name}" for target, chip in CHIPS.items()]
    found = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    runs = ", ".join(found) if found else "no device here"
    return "\n".join([f"runs on: {'the interpreter (TRITON_INTERPRET=1)' if INTERPRETED else runs}", *words])


def _autograd() -> str:
    try:
        from ..torch import eager
    except Exception as error:  # whatever a broken installation raises is the answer
        return f"none: {type(error).__name__}: {error}"
    import torch

    if eager.built is None:
        return f"in Python: this build is not for PyTorch {torch.__version__} (docs/torch.md)"
    return f"in C++, built for PyTorch {torch.__version__}"


def _optional(package: str) -> str:
    try:
        importlib.import_module(package)
    except Exception as error:  # whatever a broken installation raises is the answer
        return f"missing: {type(error).__name__}: {error}"
    try:
        return version("scikit-learn" if package == "sklearn" else package)
    except PackageNotFoundError:
        return "of unknown version"


@click.command()
def doctor() -> None:
    """Print versions, build, CPU, SIMD levels, threads, and which optional packages are missing and why.

    \b
    Example:
      groupnorm doctor
    """
    table = Table(title="groupnorm doctor", show_header=False)
    table.add_row("groupnorm", groupnorm.__version__)
    table.add_row("build", _core.BUILD)
    table.add_row("Python", Text(f"{platform.python_version()} ({sys.executable})"))
    table.add_row("NumPy", np.__version__)
    table.add_row("CPU", cpu_name())
    table.add_row("SIMD levels, best first", Text(_levels()))
    table.add_row("threads", Text(_threads()))
    table.add_row("ACL", Text(_acl()))
    table.add_row("PyTorch's autograd", Text(_autograd()))
    table.add_row("Triton kernels, targets", Text(_triton()))
    table.add_section()
    for package, purpose in OPTIONAL.items():
        table.add_row(package, Text(f"{_optional(package)}\nfor {purpose}"))
    Console().print(table)

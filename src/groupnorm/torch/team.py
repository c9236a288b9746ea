"""PyTorch's threads, for the core to work on.

PyTorch's OpenMP runtime keeps its threads in a loop for a while after each operation, on the CPUs that a pool of our
own would wake up on: in a training step the operations take turns, and each would wait for the threads of the other.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch

from .. import _core

_RUNTIMES = ("libgomp", "libiomp", "libomp")


def _runtime() -> ctypes.CDLL | None:
    """The OpenMP runtime that PyTorch came with; other packages bring others."""
    folder = Path(torch.__file__).parent / "lib"
    try:
        loaded = {
            line.split(maxsplit=5)[5].rstrip("\n")
            for line in Path("/proc/self/maps").read_text().splitlines()
            if "/" in line
        }
    except OSError:  # not Linux
        return None
    for path in sorted(loaded):
        if Path(path).name.startswith(_RUNTIMES) and Path(path).parent == folder:
            return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    return None


def join() -> bool:
    """Makes the core work on PyTorch's threads where they can be had; whether it does."""
    runtime = _runtime()
    addresses = [
        ctypes.cast(getattr(runtime, name), ctypes.c_void_p).value or 0
        for name in ("GOMP_parallel", "omp_get_thread_num")  # libomp and libiomp have both too
        if hasattr(runtime, name)
    ]
    if len(addresses) < 2:
        return False
    _core.use_team(*addresses)
    return True

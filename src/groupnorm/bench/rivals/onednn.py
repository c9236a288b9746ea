"""oneDNN through its C interface: a second opinion. It knows float32 statistics and parameters alone."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ...spec import Array
from ..contestant import Contestant, Contestants, Rival, Unable
from ..operands import EPS, Operands

# dnnl_types.h
_CPU, _IN_ORDER = 1, 1
_TYPES = {"float16": 1, "bfloat16": 2, "float32": 3}
_FORWARD, _BACKWARD, _BACKWARD_DATA = 64, 128, 160
_USE_SCALE, _USE_SHIFT = 2, 4
_SRC, _DST, _MEAN, _VARIANCE, _SCALE, _SHIFT = 1, 17, 49, 50, 51, 52
_DIFF_SRC, _DIFF_DST, _DIFF_SCALE, _DIFF_SHIFT = 129, 145, 255, 256
_STATUS = {1: "out of memory", 2: "invalid arguments", 3: "unimplemented"}
_Dims = ctypes.c_int64 * 12


class _Argument(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_int), ("memory", ctypes.c_void_p)]


class _Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int)]


def _load(name: str, folder: Path) -> ctypes.CDLL:
    """A library, after those of the same folder that it needs and that no search path has."""
    while True:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            needed = folder / str(error).partition(":")[0]
            if str(needed) == name or not needed.exists():
                raise
            _load(str(needed), folder)


@functools.cache
def _library() -> ctypes.CDLL:
    """That of the package in this environment, else of the system."""
    folder = Path(sys.prefix) / "lib"
    # The package's CPU is a device of the OpenCL runtime that comes with it.
    os.environ.setdefault("OCL_ICD_FILENAMES", str(folder / "libintelocl.so"))
    for name in (str(folder / "libdnnl.so.3"), ctypes.util.find_library("dnnl")):
        if name is not None and (os.sep not in name or os.path.exists(name)):
            library = _load(name, folder)
            library.dnnl_version.restype = ctypes.POINTER(_Version)
            return library
    raise OSError("no libdnnl")


def _version() -> str:
    found = _library().dnnl_version().contents
    return f"{found.major}.{found.minor}.{found.patch}"


def _refused(function: str, status: int) -> Unable:
    return Unable(f"{function}: {_STATUS.get(status, f'status {status}')}")


def _made(function: str, *arguments: Any) -> ctypes.c_void_p:
    """The object that a function of the library makes."""
    made = ctypes.c_void_p()
    status = getattr(_library(), function)(ctypes.byref(made), *arguments)
    if status != 0:
        raise _refused(function, status)
    return made


class _Session:
    """An engine with a stream, and the memory of one primitive. It lives as long as the process."""

    def __init__(self) -> None:
        self.engine = _made("dnnl_engine_create", _CPU, ctypes.c_size_t(0))
        self.stream = _made("dnnl_stream_create", self.engine, ctypes.c_uint(_IN_ORDER))

    def describe(self, array: Array) -> ctypes.c_void_p:
        rank, step = array.ndim, array.itemsize
        strides = (s // step for s in array.strides)
        kind = _TYPES[array.dtype.name]
        return _made(
            "dnnl_memory_desc_create_with_strides", ctypes.c_int(rank), _Dims(*array.shape), kind, _Dims(*strides)
        )

    def memory(self, array: Array) -> ctypes.c_void_p:
        address = ctypes.c_void_p(array.__array_interface__["data"][0])
        return _made("dnnl_memory_create", self.describe(array), self.engine, address)

    def runner(self, described: ctypes.c_void_p, operands: dict[int, Array]) -> Callable[[], None]:
        primitive = _made("dnnl_primitive_create", described)
        arguments = (_Argument * len(operands))(
            *(_Argument(arg, self.memory(array).value) for arg, array in operands.items())
        )
        library = _library()

        def run() -> None:
            status = library.dnnl_primitive_execute(primitive, self.stream, len(operands), arguments)
            status = status or library.dnnl_stream_wait(self.stream)
            if status != 0:
                raise _refused("dnnl_primitive_execute", status)

        return run


_session = functools.cache(_Session)


def _float32(array: Array) -> Array:
    return np.ascontiguousarray(array, np.float32)


def _prepare(operands: Operands, threads: int) -> Contestants:
    setup, x, dy, mean, rstd, gamma, beta = operands
    if setup.operator == "printed":
        raise Unable("it has no such operator")
    if threads != len(os.sched_getaffinity(0)):
        raise Unable("its threads are the CPUs of the process")
    session = _session()
    if x.ndim == 2:
        x, dy = x[:, :, None], dy[:, :, None]
    mean_, variance = _float32(mean), _float32(1 / np.square(rstd.astype(np.float64)) - EPS)
    scale, result = _float32(gamma), np.empty_like(x)
    groups, eps = ctypes.c_int64(setup.case.num_groups), ctypes.c_float(EPS)
    kind = session.describe(x)
    flags = ctypes.c_uint(_USE_SCALE if setup.operator == "backward-dx" else _USE_SCALE | _USE_SHIFT)
    made = _made(
        "dnnl_group_normalization_forward_primitive_desc_create",
        *(session.engine, ctypes.c_int(_FORWARD), kind, kind, groups, eps, flags, None),
    )
    tensors = {_SRC: x, _SCALE: scale, _MEAN: mean_, _VARIANCE: variance}
    if setup.operator == "forward":
        tensors |= {_SHIFT: _float32(beta), _DST: result}
    else:
        prop = ctypes.c_int(_BACKWARD if setup.operator == "backward" else _BACKWARD_DATA)
        made = _made(
            "dnnl_group_normalization_backward_primitive_desc_create",
            *(session.engine, prop, kind, kind, kind, groups, eps, flags, made, None),
        )
        tensors |= {_DIFF_DST: dy, _DIFF_SRC: result}
        if setup.operator == "backward":
            tensors |= {_DIFF_SCALE: np.empty_like(scale), _DIFF_SHIFT: np.empty_like(scale)}
    run = session.runner(made, tensors)
    # The library has addresses alone: the arrays live as long as the call.
    return {"given": Contestant(lambda: (run(), tensors), lambda _: result)}


ONEDNN = Rival("onednn", _version, _prepare)

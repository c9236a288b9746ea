"""Which libraries serve the calls: CANN on a machine that has a device, else the host prefix of this package."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .. import _core
from .errors import AclError
from .prototypes import CALLBACK, PROTOTYPES, Prototype

MARKER = "groupnorm_host"
_OK = 0

# In the order in which CANN has them loaded. The first name that is there counts; the operator libraries differ by
# version, and this operator's is a package of its own.
_RUNTIME = ("libascendcl.so", "libacl_rt.so")
_META = ("libnnopbase.so",)
_OPERATORS = ("libopapi_nn.so", "libopapi.so")
_LIB_FOLDERS = ("lib64", "lib")
_MACHINES = {0x3E: "x86_64", 0xB7: "aarch64"}  # e_machine of an ELF file

_log = logging.getLogger("groupnorm")


def host_prefix() -> Path:
    """The folder that ASCEND_HOME_PATH has to name for programs to find the host libraries.

    RuntimeError when this installation was built without them.
    """
    prefix = Path(_core.__file__).resolve().parent / "cann"
    if not (prefix / "lib64" / "libascendcl.so").is_file():
        raise RuntimeError(f"{prefix}: no host libraries; this installation of groupnorm was built without them")
    return prefix


def _machine(path: Path) -> str:
    """The architecture of a shared library, as the loader would read it."""
    with open(path, "rb") as file:
        head = file.read(20)
    if head[:4] != b"\x7fELF":
        return "not an ELF file"
    code = int.from_bytes(head[18:20], "little")
    return _MACHINES.get(code, f"machine {code}")


def _first(folders: list[Path], names: tuple[str, ...]) -> Path | None:
    candidates = (folder / name for name in names for folder in folders)
    return next((path for path in candidates if path.is_file()), None)


def _library_paths(prefix: Path) -> list[Path]:
    """Runtime, tensors and operators of a prefix, in the order of loading. OSError names what is missing."""
    folders = [prefix / name for name in _LIB_FOLDERS]
    vendors = sorted((prefix / "opp" / "vendors").glob("*/op_api/lib"))
    for root in os.environ.get("ASCEND_CUSTOM_OPP_PATH", "").split(":"):
        if root:
            vendors[:0] = [Path(root) / "op_api" / "lib", *sorted((Path(root) / "vendors").glob("*/op_api/lib"))]
    wanted = {
        "runtime": _first(folders, _RUNTIME),
        "tensor library": _first(folders, _META),
        "operator": _first(vendors, ("libcust_opapi.so",)),
        "operators": _first(folders, _OPERATORS),
    }
    for what in ("runtime", "tensor library"):
        if wanted[what] is None:
            names = " or ".join(_RUNTIME if what == "runtime" else _META)
            raise OSError(f"{prefix}: no {names} in {' or '.join(_LIB_FOLDERS)}")
    found = [path for path in wanted.values() if path is not None]
    for path in found:
        if _machine(path) not in (platform.machine(), "not an ELF file"):
            raise OSError(f"{path}: built for {_machine(path)}; accepted: {platform.machine()}")
    return found


# Loads what it is given and prints a status, the number of devices and whether they are host libraries. In a process of
# its own, since libraries cannot be unloaded and the names of two runtimes in one process would mix.
_PROBE = """
import ctypes, sys
libraries = [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in sys.argv[1:]]
count, call = ctypes.c_uint32(), libraries[0].aclrtGetDeviceCount
call.argtypes = [ctypes.POINTER(ctypes.c_uint32)]
status = libraries[0].aclInit(None)
status = 0 if status == 100002 else status
print(status or call(ctypes.byref(count)), count.value, int(hasattr(libraries[0], "groupnorm_host")))
"""


def _no_device(paths: list[Path]) -> str:
    """Why the libraries of a prefix cannot be used here; empty when they have a device."""
    command = [sys.executable, "-c", _PROBE, *map(str, paths)]
    try:
        probe = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return "they did not answer in two minutes"
    # The last line is the probe's: a library may have had something to say before.
    match = re.fullmatch(r"(\d+) (\d+) ([01])", (probe.stdout.splitlines() or [""])[-1])
    if probe.returncode != 0 or not match:
        last = (probe.stderr.strip().splitlines() or [f"exit status {probe.returncode}"])[-1]
        return f"they cannot be loaded: {last}"
    status, count, host = map(int, match.groups())
    if host:
        return "they are host libraries, of another groupnorm"
    if status != _OK:
        return f"aclrtGetDeviceCount returned {status}"
    return "" if count > 0 else "they have no device"


def _snake(name: str) -> str:
    """CreateStreamWithConfig -> create_stream_with_config, GetCANNVersion -> get_cann_version."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


# pyACL's names where they are not the C name in other letters.
_RENAMED = {
    "aclrtGetCurrentContext": "rt.get_context",
    "aclrtSetCurrentContext": "rt.set_context",
    "aclrtGetSocName": "get_soc_name",
    "aclrtUnSubscribeReport": "rt.unsubscribe_report",
}
_NAMESPACES = {"aclrt": "rt", "aclmdl": "mdl", "aclop": "op", "aclprof": "prof", "aclnn": "nn", "aclsys": "sys"}


def _python_name(name: str) -> str:
    if name in _RENAMED:
        return _RENAMED[name]
    for prefix, space in _NAMESPACES.items():
        if re.match(rf"{prefix}[A-Z]", name):
            return f"{space}.{_snake(name[len(prefix) :])}"
    return _snake(name[3:])


class _Space:
    """A name space of functions, acl.rt for one."""


class _Util:
    """pyACL's acl.util: addresses of Python's memory."""

    @staticmethod
    def numpy_to_ptr(array: np.ndarray[Any, Any]) -> int:
        """The address of an array's data, which stays the array's."""
        return int(array.ctypes.data)

    @staticmethod
    def ptr_to_numpy(address: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        """An array on memory that must outlive it."""
        wanted = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * wanted.itemsize
        return np.frombuffer((ctypes.c_char * size).from_address(address), wanted).reshape(shape)

    @staticmethod
    def bytes_to_ptr(data: bytes) -> int:
        """The address of the bytes, which stay Python's."""
        return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0

    @staticmethod
    def ptr_to_bytes(address: int, size: int) -> bytes:
        """A copy of memory."""
        return ctypes.string_at(address, size)


class Library:
    """The functions of one set of libraries, in two manners.

    `acl.c.aclrtMalloc` is the C function with its argument types. `acl.rt.malloc(size, policy)` calls it as pyACL
    does: inputs in, what it writes out, the status last - `address, ret` here, `ret` alone where it writes nothing.
    Names are those of C in snake case: acl.rt, acl.mdl, acl.op, acl.prof and acl.sys as in pyACL, acl.nn for aclnn,
    the rest on acl itself; acl.util has pyACL's conversions. Functions that the libraries lack raise
    NotImplementedError when they are called.

    Attributes: `kind`, "host" or "cann"; `prefix`; `why`, a sentence on why it was taken.
    """

    rt: Any
    nn: Any

    def __init__(self, prefix: Path, why: str) -> None:
        # Our own libraries find each other; CANN's want every name in the global scope.
        paths = _library_paths(prefix)
        first = ctypes.CDLL(str(paths[0]))
        self.kind = "host" if hasattr(first, MARKER) else "cann"
        mode = ctypes.RTLD_LOCAL if self.kind == "host" else ctypes.RTLD_GLOBAL
        self._libraries = [ctypes.CDLL(str(path), mode=mode) for path in paths]
        self.prefix = prefix
        self.why = why
        self.c = _Space()
        self.util = _Util()
        spaces = {name: _Space() for name in _NAMESPACES.values()}
        vars(self).update(spaces)
        for prototype in PROTOTYPES.values():
            function = self._function(prototype)
            setattr(self.c, prototype.name, function)
            space, _, name = _python_name(prototype.name).rpartition(".")
            setattr(spaces[space] if space else self, name, _caller(prototype, function))

    def __repr__(self) -> str:
        return f"<{self.kind} libraries of {self.prefix}: {self.why}>"

    def _function(self, prototype: Prototype) -> Callable[..., Any]:
        for library in self._libraries:
            function = getattr(library, prototype.name, None)
            if function is not None:
                function.argtypes = prototype.argtypes
                function.restype = prototype.result
                return function  # type: ignore[no-any-return]

        def missing(*_: Any) -> Any:
            raise NotImplementedError(f"{prototype.name}: not in the libraries of {self.prefix}")

        return missing

    def check(self, function: str, ret: int) -> None:
        """AclError unless `ret` is 0. To be called in the thread of the call, which has the message."""
        if ret != _OK:
            text = self.c.aclGetRecentErrMsg()  # type: ignore[attr-defined]
            raise AclError(function, ret, text.decode(errors="replace") if text else "")


def _caller(prototype: Prototype, function: Callable[..., Any]) -> Callable[..., Any]:
    """pyACL's manner around a C function. Texts come as str; a callback is kept for as long as the process lives."""
    inputs = [parameter for parameter in prototype.parameters if parameter.out is None]
    optional = 1 if prototype.name == "aclInit" else 0

    def call(*given: Any) -> Any:
        if not len(inputs) - optional <= len(given) <= len(inputs):
            names = ", ".join(parameter.name for parameter in inputs)
            raise TypeError(f"{prototype.name}: {len(given)} arguments; accepted: {len(inputs)} ({names})")
        values = iter([*given, *[None] * (len(inputs) - len(given))])
        outputs, arguments = [], []
        for parameter in prototype.parameters:
            if parameter.out is not None:
                outputs.append(parameter.out())
                room = outputs[-1]
                arguments.append(room if isinstance(room, ctypes.Array) else ctypes.byref(room))
            else:
                arguments.append(_argument(parameter, next(values)))
        ret = function(*arguments)
        results = [_result(getattr(output, "value", output)) for output in outputs]
        return (*results, ret) if results else _result(ret)

    call.__name__ = call.__qualname__ = _python_name(prototype.name).rpartition(".")[2]
    call.__doc__ = f"{prototype.name} in pyACL's manner: ({', '.join(parameter.name for parameter in inputs)})."
    return call


# What C may still call: nobody can say when it is done.
_callbacks: dict[int, tuple[Any, Any]] = {}


def _result(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _argument(parameter: Any, value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    if parameter.type is CALLBACK and value is not None:
        made = value if isinstance(value, CALLBACK) else CALLBACK(value)
        return _callbacks.setdefault(id(value), (value, made))[1]
    if parameter.array is not None and isinstance(value, (list, tuple)):
        return (parameter.array * len(value))(*value)
    return value


_loaded: dict[Path, Library] = {}


def _resolve(path: Path) -> Path:
    try:
        return path.resolve()
    except RuntimeError as error:  # what Python 3.11 and 3.12 raise for a loop of links
        raise OSError(f"{path}: {error}") from error


def _open(prefix: Path, why: str) -> Library:
    prefix = _resolve(prefix)
    if prefix not in _loaded:
        other = next((path for path, library in _loaded.items() if library.kind == "host"), None)
        paths = _library_paths(prefix)
        if other and hasattr(ctypes.CDLL(str(paths[0])), MARKER):
            raise OSError(f"{prefix}: host libraries beside those of {other}; accepted: one host prefix a process")
        _loaded[prefix] = Library(prefix, why)
        _log.info("aclnn: %r", _loaded[prefix])
    return _loaded[prefix]


def _try_cann() -> tuple[Library | None, str]:
    home = os.environ.get("ASCEND_HOME_PATH")
    if not home:
        return None, "ASCEND_HOME_PATH is not set"
    prefix = Path(home)
    try:
        if _resolve(prefix) == host_prefix():
            return None, f"ASCEND_HOME_PATH, {home}, is the host prefix itself"
        paths = _library_paths(prefix)
        reason = _no_device(paths)
        if reason:
            return None, f"the libraries of ASCEND_HOME_PATH, {home}, are of no use here: {reason}"
        library = _open(prefix, f"ASCEND_HOME_PATH is {home} and has a device")
    except OSError as error:
        return None, f"ASCEND_HOME_PATH is {home}, but {error}"
    return library, library.why


def load(which: str | os.PathLike[str] | None = None) -> Library:
    """The libraries to call: CANN's where there is a device, else those of this package.

    `which` is None for that choice, "host" or "cann" for one of the two, or the path of a prefix that is shaped like
    an ASCEND_HOME_PATH. The result's `kind`, `prefix` and `why` say what was taken and why; the logger "groupnorm" says
    it too. Raises OSError, with the reason, when "cann" or a path cannot be used, ValueError for an empty path.
    """
    if which is None or which == "cann":
        cann, why = _try_cann()
        if cann is not None:
            return cann
        if which == "cann":
            raise OSError(f"load('cann'): {why}")
        return _open(host_prefix(), why)
    if which == "host":
        return _open(host_prefix(), "asked for")
    if not os.fspath(which):
        raise ValueError("load: an empty path; accepted: 'host', 'cann' or the path of a prefix")
    if not Path(which).is_dir():
        raise OSError(f"load: no folder {os.fspath(which)!r}; accepted: 'host', 'cann' or the path of a prefix")
    return _open(Path(which), "asked for by path")

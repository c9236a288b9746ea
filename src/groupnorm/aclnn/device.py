"""A device for the length of a `with`: its stream, its arrays, and what queued work still needs."""

from __future__ import annotations

import ctypes
import math
import operator
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np

from ..spec import Array
from .errors import AclError
from .library import Library, load
from .prototypes import PROTOTYPES

# aclDataType
_DTYPES = {
    "float32": 0,
    "float16": 1,
    "int8": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 6,
    "uint16": 7,
    "uint32": 8,
    "int64": 9,
    "uint64": 10,
    "float64": 11,
    "bool": 12,
    "bfloat16": 27,
}
_FORMAT_ND = 2
_HUGE_FIRST = 0
_HOST_TO_DEVICE = 1
_DEVICE_TO_HOST = 2
_ALREADY_INITIALISED = 100002
_TIMEOUT = 507046
_POLL_MS = 100  # how often a wait looks whether it was interrupted


def acl_dtype(name: str, dtype: np.dtype[Any]) -> int:
    """aclDataType of a NumPy dtype; bfloat16 is ml_dtypes' or two raw bytes. TypeError names `name`."""
    code = _DTYPES.get("bfloat16" if dtype == np.dtype("V2") else dtype.name)
    if code is None or not dtype.isnative:
        raise TypeError(f"{name}: dtype {dtype}; accepted: {', '.join(_DTYPES)}, in the machine's byte order")
    return code


class _Process:
    """Who uses ACL: the first Device initialises it, and the last finalises it if a Device was the first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.uses: dict[int, int] = {}  # by library

    def enter(self, acl: Library) -> bool:
        """Whether ACL is to be finalised by leave()."""
        with self.lock:
            if self.uses.get(id(acl), 0) == 0:
                ret = acl.c.aclInit(None)  # type: ignore[attr-defined]
                if ret == _ALREADY_INITIALISED:
                    return False
                acl.check("aclInit", ret)
            self.uses[id(acl)] = self.uses.get(id(acl), 0) + 1
            return True

    def leave(self, acl: Library) -> None:
        with self.lock:
            self.uses[id(acl)] -= 1
            if self.uses[id(acl)] == 0:
                acl.check("aclFinalize", acl.c.aclFinalize())  # type: ignore[attr-defined]


_process = _Process()
_thread = threading.local()


def _entered() -> list[Device]:
    """The devices that this thread is in, the innermost last."""
    if getattr(_thread, "process", None) != os.getpid():  # a forked child is in none
        _thread.process, _thread.devices = os.getpid(), []
    devices: list[Device] = _thread.devices
    return devices


class DeviceArray:
    """A contiguous array in device memory, made by `Device.upload` or `Device.empty`.

    The memory is given back when the array is collected, by `free`, or at the end of the `with`.
    """

    def __init__(self, device: Device, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.device = device
        self.shape = shape
        self.dtype = dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        self._address = device._allocate(self.nbytes)
        self._collected = weakref.finalize(self, device._retire, self._address)

    @property
    def address(self) -> int:
        """Where it is; 0 for an array without elements. ValueError when it was freed."""
        if not self._collected.alive:
            raise ValueError(f"{self!r} was freed; accepted: an array that is not")
        return self._address

    def numpy(self) -> Array:
        """Waits for the device's stream and copies the array to the host. ValueError when it was freed."""
        address = self.address
        self.device.synchronize()
        result: Array = np.empty(self.shape, self.dtype)
        if self.nbytes:
            self.device._call("aclrtMemcpy", result.ctypes.data, self.nbytes, address, self.nbytes, _DEVICE_TO_HOST)
        return result

    def free(self) -> None:
        """Gives the memory back, after the stream's work. Once is enough."""
        if self._collected.detach():
            self.device.synchronize()
            self.device._free(self._address)

    def __array__(self, *_: Any, **__: Any) -> Array:
        raise TypeError(f"{self!r} is on a device; accepted: its .numpy(), which copies it")

    def __repr__(self) -> str:
        state = f"address=0x{self._address:x}" if self._collected.alive else "freed"
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, {state})"


class Device:
    """A device, a context on it and a stream of its own, until the `with` ends.

    ACL is initialised when nobody has, and finalised with the last Device that needed that. Work is queued, and what
    it needs - tensors, workspace, arrays - is kept until the stream is synchronised. Devices may be nested; one belongs
    to the thread that entered it.

    Raises AclError when the runtime refuses, ValueError for an index that is none, RuntimeError outside the `with`.
    """

    def __init__(self, index: int = 0, *, library: Library | None = None) -> None:
        self.index = operator.index(index)
        if not -(2**31) <= self.index < 2**31:
            raise ValueError(f"index: {index}; accepted: the number of a device, from 0")
        self.acl = library or load()
        self._stream: int | None = None
        self._addresses: set[int] = set()
        self._in_flight: list[Callable[[], None]] = []
        self._exit = ExitStack()

    def __enter__(self) -> Device:
        if self._stream is not None:
            raise RuntimeError(f"Device({self.index}) is entered already; accepted: one `with` at a time")
        with ExitStack() as undo:
            if _process.enter(self.acl):
                undo.callback(_process.leave, self.acl)
            before, ret = self.acl.rt.get_context()
            if ret == 0:
                undo.callback(self.acl.rt.set_context, before)  # unless it has ended meanwhile
            self._call("aclrtSetDevice", self.index)
            undo.callback(self._call, "aclrtResetDevice", self.index)
            self._context, _ = self.acl.rt.get_context()
            stream = ctypes.c_void_p()
            self._call("aclrtCreateStream", ctypes.byref(stream))
            self._exit = undo.pop_all()
        self._stream = stream.value
        self._exit.callback(self._leave)
        _entered().append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _ = self.stream
        self._exit.close()

    def _leave(self) -> None:
        """Gives back all that the device was used for, whatever fails on the way."""
        devices = _entered()
        if self in devices:  # a generator may be closed in another thread
            devices.remove(self)
        with ExitStack() as stack:
            stream = self.stream

            def end() -> None:
                self._stream = None
                self._call("aclrtDestroyStream", stream)

            stack.callback(end)
            for address in self._addresses:
                stack.callback(self._call, "aclrtFree", address)
            self._addresses = set()
            stack.callback(self.synchronize)
            self._here()

    def _here(self) -> None:
        """Makes this device's context the thread's, which a device nested inside may have changed."""
        if self.acl.rt.get_context() != (self._context, 0):
            self._call("aclrtSetCurrentContext", self._context)

    @property
    def stream(self) -> int:
        """The aclrtStream. RuntimeError outside the `with`."""
        if self._stream is None:
            raise RuntimeError(f"Device({self.index}) is not entered; accepted: use inside `with Device(...)`")
        return self._stream

    def synchronize(self) -> None:
        """Waits for the stream. AclError for what failed on it; then lets go what the work needed."""
        stream = self.stream
        self._here()
        ret = _TIMEOUT
        while ret == _TIMEOUT:  # in pieces, so that Python sees an interrupt
            ret = self.acl.rt.synchronize_stream_with_timeout(stream, _POLL_MS)
        try:
            self.acl.check("aclrtSynchronizeStream", ret)
        finally:
            while self._in_flight:  # an array that is let go here adds its memory
                self._in_flight.pop(0)()

    def upload(self, array: Any, name: str = "array") -> DeviceArray:
        """A copy of an array in device memory. TypeError, naming `name`, for a dtype that ACL does not have."""
        host = np.asarray(array)
        acl_dtype(name, host.dtype)
        host = np.ascontiguousarray(host).reshape(host.shape)
        result = self.empty(host.shape, host.dtype)
        if host.nbytes:
            self._call("aclrtMemcpy", result.address, host.nbytes, host.ctypes.data, host.nbytes, _HOST_TO_DEVICE)
        return result

    def empty(self, shape: Sequence[int], dtype: Any) -> DeviceArray:
        """An array in device memory with nothing in it. ValueError for a shape that is none."""
        wanted = np.dtype(dtype)
        acl_dtype("dtype", wanted)
        try:
            sizes = tuple(operator.index(size) for size in shape)
        except TypeError as error:
            raise TypeError(f"shape: {shape!r}; accepted: whole numbers") from error
        if any(size < 0 for size in sizes) or math.prod(sizes) * wanted.itemsize >= 2**63:
            raise ValueError(f"shape: {sizes}; accepted: sizes of 0 or more, of as many bytes as memory holds")
        return DeviceArray(self, sizes, wanted)

    def launch(self, operator_name: str, arguments: Sequence[Any]) -> None:
        """Both phases of an aclnn operator, queued on the stream.

        `arguments` are those of phase 1 without its two results: DeviceArrays where it takes tensors, a tuple of bools
        for an aclBoolArray, None for null, numbers and strings for the rest. AclError when a phase refuses.
        """
        stream = self.stream
        phase1 = PROTOTYPES.get(f"{operator_name}GetWorkspaceSize")
        if phase1 is None:
            known = sorted(
                name.removesuffix("GetWorkspaceSize") for name in PROTOTYPES if name.endswith("WorkspaceSize")
            )
            raise ValueError(f"operator_name: {operator_name!r}; accepted: {', '.join(known)}")
        names = [parameter.name for parameter in phase1.parameters[:-2]]
        if len(arguments) != len(names):
            raise TypeError(f"{operator_name}: {len(arguments)} arguments; accepted: {len(names)} ({', '.join(names)})")
        self._here()
        held: list[Callable[[], None]] = []
        try:
            values = [self._argument(argument, held) for argument in arguments]
            size, executor = ctypes.c_uint64(), ctypes.c_void_p()
            self._call(f"{operator_name}GetWorkspaceSize", *values, ctypes.byref(size), ctypes.byref(executor))
            workspace = self._malloc(size.value)
            if workspace:
                held.append(lambda: self._call("aclrtFree", workspace))
            self._call(operator_name, workspace or None, size.value, executor, stream)
        except BaseException:
            for release in held:
                release()
            raise
        self._in_flight += held

    def _argument(self, argument: Any, held: list[Callable[[], None]]) -> Any:
        if isinstance(argument, DeviceArray):
            handle = self._tensor(argument)
            # The array is kept with the tensor.
            held.append(lambda array=argument: self._call("aclDestroyTensor", handle))  # type: ignore[misc]
            return handle
        if isinstance(argument, tuple):
            values = (ctypes.c_bool * len(argument))(*argument)
            array = self.acl.c.aclCreateBoolArray(values, len(argument))  # type: ignore[attr-defined]
            held.append(lambda: self._call("aclDestroyBoolArray", array))
            return array
        return argument.encode() if isinstance(argument, str) else argument

    def _tensor(self, array: DeviceArray) -> int:
        shape = (ctypes.c_int64 * len(array.shape))(*array.shape)
        code = acl_dtype("array", array.dtype)
        rank = len(array.shape)
        create = self.acl.c.aclCreateTensor  # type: ignore[attr-defined]
        handle = create(shape, rank, code, None, 0, _FORMAT_ND, shape, rank, array.address or None)
        if not handle:
            raise AclError("aclCreateTensor", 161002, self.acl.get_recent_err_msg() or "")  # type: ignore[attr-defined]
        return int(handle)

    # ---- memory ----

    def _malloc(self, size: int) -> int:
        if size == 0:
            return 0
        address = ctypes.c_void_p()
        self._call("aclrtMalloc", ctypes.byref(address), size, _HUGE_FIRST)
        return address.value or 0

    def _allocate(self, size: int) -> int:
        _ = self.stream
        self._here()
        address = self._malloc(size)
        if address:
            self._addresses.add(address)
        return address

    def _free(self, address: int) -> None:
        if address in self._addresses:
            self._addresses.remove(address)
            self._call("aclrtFree", address)

    def _retire(self, address: int) -> None:
        """Of an array that was collected: its memory goes with the next synchronise, in the thread of the device."""
        if self._stream is not None and address:
            self._in_flight.append(lambda: self._free(address))

    def _call(self, function: str, *arguments: Any) -> None:
        self.acl.check(function, getattr(self.acl.c, function)(*arguments))


def current_device() -> Device | None:
    """The innermost `with Device(...)` of this thread."""
    devices = _entered()
    return devices[-1] if devices else None

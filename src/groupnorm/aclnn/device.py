"""A device for the length of a `with`: its stream, its arrays, and what queued work still needs."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from ..spec import Array
from .library import Library, load

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

_current = threading.local()


def acl_dtype(name: str, dtype: np.dtype[Any]) -> int:
    """aclDataType of a NumPy dtype; bfloat16 is ml_dtypes' or two raw bytes. TypeError names `name`."""
    code = _DTYPES.get("bfloat16" if dtype == np.dtype("V2") else dtype.name)
    if code is None or not dtype.isnative:
        raise TypeError(f"{name}: dtype {dtype}; accepted: {', '.join(_DTYPES)}")
    return code


class DeviceArray:
    """A contiguous array in device memory, made by `Device.upload` or `Device.empty`."""

    def __init__(self, device: Device, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.device = device
        self.shape = shape
        self.dtype = dtype
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.address = device._malloc(self.nbytes)

    def numpy(self) -> Array:
        """Waits for the device's stream and copies the array to the host."""
        self.device.synchronize()
        result: Array = np.empty(self.shape, self.dtype)
        if self.nbytes:
            self.device._call(
                "aclrtMemcpy", result.ctypes.data, self.nbytes, self.address, self.nbytes, _DEVICE_TO_HOST
            )
        return result

    def free(self) -> None:
        """Gives the memory back, after the stream's work; the array is of no use then."""
        if self.address:
            self.device.synchronize()
            self.device._call("aclrtFree", self.address)
            self.address = 0

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, address=0x{self.address:x})"


class Device:
    """A device, its context in this thread and a stream of its own, until the `with` ends.

    It initialises ACL when nobody has, and finalises only what it initialised. Work is queued; what it needs - tensors,
    workspace - is kept until the stream is synchronised. A device belongs to the thread that entered it.

    Raises AclError when the runtime refuses, RuntimeError when it is used outside its `with`.
    """

    def __init__(self, index: int = 0, *, library: Library | None = None) -> None:
        self.index = index
        self.acl = library or load()
        self._stream: int | None = None
        self._owns_acl = False
        self._arrays: list[DeviceArray] = []
        self._in_flight: list[Callable[[], None]] = []

    def __enter__(self) -> Device:
        if self._stream is not None:
            raise RuntimeError(f"Device({self.index}) is entered already; accepted: one `with` at a time")
        ret = self.acl.c.aclInit(None)  # type: ignore[attr-defined]
        if ret != _ALREADY_INITIALISED:
            self.acl.check("aclInit", ret)
            self._owns_acl = True
        try:
            self._call("aclrtSetDevice", self.index)
            stream = ctypes.c_void_p()
            self._call("aclrtCreateStream", ctypes.byref(stream))
        except BaseException:
            self._finalize()
            raise
        self._stream = stream.value
        self._previous = getattr(_current, "device", None)
        _current.device = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _current.device = self._previous
        try:
            self.synchronize()
        finally:
            for array in self._arrays:
                if array.address:
                    self._call("aclrtFree", array.address)
                    array.address = 0
            self._arrays.clear()
            stream, self._stream = self._stream, None
            self._call("aclrtDestroyStream", stream)
            self._call("aclrtResetDevice", self.index)
            self._finalize()

    def _finalize(self) -> None:
        if self._owns_acl:
            self._owns_acl = False
            self._call("aclFinalize")

    @property
    def stream(self) -> int:
        """The aclrtStream. RuntimeError outside the `with`."""
        if self._stream is None:
            raise RuntimeError(f"Device({self.index}) is not entered; accepted: use inside `with Device(...)`")
        return self._stream

    def synchronize(self) -> None:
        """Waits for the stream. AclError for what failed on it; then lets go what the work needed."""
        try:
            self._call("aclrtSynchronizeStream", self.stream)
        finally:
            in_flight, self._in_flight = self._in_flight, []
            for release in in_flight:
                release()

    def upload(self, array: Any) -> DeviceArray:
        """A copy of an array in device memory, freed at the end of the `with` or by its `free`."""
        host = np.ascontiguousarray(array).reshape(np.shape(array))
        result = self.empty(host.shape, host.dtype)
        if host.nbytes:
            self._call("aclrtMemcpy", result.address, host.nbytes, host.ctypes.data, host.nbytes, _HOST_TO_DEVICE)
        return result

    def empty(self, shape: Sequence[int], dtype: Any) -> DeviceArray:
        """An array in device memory with nothing in it, freed like one of `upload`."""
        wanted = np.dtype(dtype)
        acl_dtype("dtype", wanted)
        result = DeviceArray(self, tuple(shape), wanted)
        self._arrays.append(result)
        return result

    def release(self, array: DeviceArray) -> None:
        """Frees an array of this device, after the stream's work."""
        array.free()
        self._arrays.remove(array)

    def launch(self, operator: str, arguments: Sequence[Any]) -> None:
        """Both phases of an aclnn operator, queued on the stream.

        `arguments` are those of phase 1 without its two results: DeviceArrays where it takes tensors, a tuple of bools
        for an aclBoolArray, None for null, numbers and strings for the rest. AclError when a phase refuses.
        """
        held: list[Callable[[], None]] = []
        try:
            values = [self._argument(argument, held) for argument in arguments]
            size, executor = ctypes.c_uint64(), ctypes.c_void_p()
            self._call(f"{operator}GetWorkspaceSize", *values, ctypes.byref(size), ctypes.byref(executor))
            workspace = self._malloc(size.value)
            if workspace:
                held.append(lambda: self._call("aclrtFree", workspace))
            self._call(operator, workspace or None, size.value, executor, self.stream)
        except BaseException:
            for release in held:
                release()
            raise
        self._in_flight += held

    def _argument(self, argument: Any, held: list[Callable[[], None]]) -> Any:
        if isinstance(argument, DeviceArray):
            if not argument.address and argument.nbytes:
                raise ValueError(f"{argument!r} was freed; accepted: an array that is not")
            handle = self._tensor(argument)
            held.append(lambda: self._call("aclDestroyTensor", handle))
            return handle
        if isinstance(argument, tuple):
            array = self.acl.c.aclCreateBoolArray((ctypes.c_bool * len(argument))(*argument), len(argument))  # type: ignore[attr-defined]
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
            self.acl.check("aclCreateTensor", 1)
        return int(handle)

    def _malloc(self, size: int) -> int:
        if size == 0:
            return 0
        address = ctypes.c_void_p()
        self._call("aclrtMalloc", ctypes.byref(address), size, _HUGE_FIRST)
        return address.value or 0

    def _call(self, function: str, *arguments: Any) -> None:
        self.acl.check(function, getattr(self.acl.c, function)(*arguments))


def current_device() -> Device | None:
    """The innermost `with Device(...)` of this thread."""
    return getattr(_current, "device", None)

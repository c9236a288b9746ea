"""Calls of the aclnn operators for the tests of them: tensors on the device, both phases, operands."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import bits
from groupnorm import aclnn, cases
from groupnorm.aclnn.device import acl_dtype
from groupnorm.cases import SMALL

ND = 2
acl = aclnn.load("host")
NULL, INVALID = 161001, 161002
# On the device ranks go to 8 and the statistics of a forward have the dtype of x.
CASES = [case for case in SMALL if len(case.shape) > 2]


@pytest.fixture
def device():
    with aclnn.Device(0, library=acl) as made:
        yield made


def message():
    return acl.get_recent_err_msg() or ""


class Tensors:
    """Tensors on device memory, views of any kind, freed together."""

    def __init__(self):
        self.handles, self.blocks = [], []

    def block(self, array):
        """A copy of an array in device memory; its address."""
        pointer, ret = acl.rt.malloc(max(array.nbytes, 1), 0)
        assert ret == 0
        self.blocks.append(pointer)
        if array.nbytes:
            assert acl.rt.memcpy(pointer, array.nbytes, array.ctypes.data, array.nbytes, 1) == 0
        return pointer

    def tensor(self, array, *, shape=None, strides=None, offset=0, fmt=ND, dtype=None, address=None):
        """A tensor on a copy of `array`, seen as `shape` with `strides` (in elements) from `offset` on."""
        shape = list(array.shape if shape is None else shape)
        code = acl_dtype("array", array.dtype) if dtype is None else dtype
        pointer = self.block(array) if address is None else address
        handle = acl.create_tensor(
            shape, len(shape), code, strides, offset, fmt, list(array.shape), array.ndim, pointer
        )
        assert handle
        self.handles.append(handle)
        return handle

    def read(self, array, handle):
        """What the tensor's memory holds now, as the array it was made from."""
        pointer, ret = acl.get_raw_tensor_addr(handle)
        assert ret == 0
        result = np.empty_like(np.ascontiguousarray(array))
        if result.nbytes:
            assert acl.rt.memcpy(result.ctypes.data, result.nbytes, pointer, result.nbytes, 2) == 0
        return result

    def close(self):
        for handle in self.handles:
            assert acl.destroy_tensor(handle) == 0
        for pointer in self.blocks:
            assert acl.rt.free(pointer) == 0


@pytest.fixture
def tensors(device):
    made = Tensors()
    yield made
    device.synchronize()
    made.close()


def run(device, name, *arguments):
    """Both phases and a synchronise."""
    size, executor, ret = getattr(acl.nn, f"{name}_get_workspace_size")(*arguments)
    assert ret == 0, message()
    workspace = 0
    if size:
        workspace, ret = acl.rt.malloc(size, 0)
        assert ret == 0
    assert getattr(acl.nn, name)(workspace or None, size, executor, device.stream) == 0, message()
    device.synchronize()
    if workspace:
        assert acl.rt.free(workspace) == 0


def inputs_of(case, dtype):
    """x, dy, gamma, mean, rstd of one dtype."""
    return cases.make(case, dtype, parameter_dtype=dtype)


def grouped(case, dtype):
    """The operands of operator A."""
    return tuple(cases.grouped(inputs_of(case, dtype)))


def same(result, expected):
    return all(
        (a is None and b is None) or (a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b))
        for a, b in zip(result, expected, strict=True)
    )

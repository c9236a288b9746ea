"""Tensors, executors and workspaces of the C interface: what a launch takes, refuses and leaves as it was."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import numpy as np
import pytest

import groupnorm
from conftest import bits
from groupnorm.cases import SMALL
from operators import INVALID, ND, NULL, Tensors, acl, device, grouped, message, run, tensors  # noqa: F401

X = np.zeros((2, 4, 8), np.float32)
GROUPS = np.ones((2, 2), np.float32)
GAMMA = np.ones(4, np.float32)


@pytest.fixture
def armed(device, tensors):
    """Tensors, size and executor of a phase 1 of operator A, and what dx has to be."""
    operands = grouped(SMALL[1], np.dtype(np.float32))
    given = [tensors.tensor(array) for array in operands]
    dx = tensors.tensor(np.full_like(operands[0], 5))
    size, executor, ret = acl.nn.group_normalization_grad_get_workspace_size(*given, dx)
    assert ret == 0
    workspace, _ = acl.rt.malloc(size, 0)
    tensors.blocks.append(workspace)
    expected = groupnorm.group_normalization_grad(*operands)
    return operands, given, dx, workspace, size, executor, expected


def test_refused_launches_change_nothing(device, tensors, armed):
    operands, _, dx, workspace, size, executor, _ = armed
    host = np.zeros(size, np.uint8)
    launch = acl.nn.group_normalization_grad
    refusals = [
        (launch(workspace, size, None, device.stream), NULL, "executor is null"),
        (launch(None, size, executor, device.stream), NULL, "workspace is null"),
        (launch(workspace, size - 1, executor, device.stream), INVALID, "workspaceSize is"),
        (launch(workspace, 0, executor, device.stream), INVALID, "workspaceSize is 0"),
        (launch(workspace, 2**64 - 1, executor, device.stream), INVALID, "more than its allocation"),
        (launch(host.ctypes.data, size, executor, device.stream), INVALID, "not device memory"),
        (launch(workspace, size, dx, device.stream), INVALID, "which is an aclTensor"),
        (launch(workspace, size, 0xDEADBEEF, device.stream), INVALID, "not an aclOpExecutor"),
        (acl.nn.group_norm(workspace, size, executor, device.stream), INVALID, "was made by aclnnGroupNormalizationGrad"),
    ]  # fmt: skip
    codes = [code for code, _, _ in refusals]
    assert codes == [wanted for _, wanted, _ in refusals]
    assert (tensors.read(operands[0], dx) == 5).all()
    assert launch(workspace, size, executor, 12345) in (361001, 107003)
    device.synchronize()


def test_messages_of_refused_launches(device, armed):
    _, _, dx, workspace, size, executor, _ = armed
    launch = acl.nn.group_normalization_grad
    for arguments, words in (
        ((workspace, size, None), "executor is null"),
        ((None, size, executor), f"workspace is null; accepted: {size} bytes of device memory, what phase 1 said"),
        ((workspace, size - 1, executor), f"workspaceSize is {size - 1}; accepted: {size}, what phase 1 said, or more"),
        ((workspace, size, dx), "which is an aclTensor; accepted: an aclOpExecutor"),
    ):
        assert launch(*arguments, device.stream) in (NULL, INVALID)
        assert words in message()
    assert acl.destroy_acl_op_executor(executor) == 0


def test_an_executor_serves_once(device, tensors, armed):
    operands, _, dx, workspace, size, executor, expected = armed
    launch = acl.nn.group_normalization_grad
    assert launch(workspace, size, executor, device.stream) == 0
    assert launch(workspace, size, executor, device.stream) == INVALID
    assert "already used or destroyed" in message()
    assert acl.destroy_acl_op_executor(executor) == INVALID
    device.synchronize()
    assert bits(tensors.read(operands[0], dx)) == bits(expected)


def test_handles_are_not_given_out_twice(device, tensors, armed):
    _, given, dx, _, _, executor, _ = armed
    seen = {executor}
    for _ in range(100):
        assert acl.destroy_acl_op_executor(executor) == 0
        _, executor, ret = acl.nn.group_normalization_grad_get_workspace_size(*given, dx)
        assert ret == 0
        assert executor not in seen
        seen.add(executor)
    assert acl.destroy_acl_op_executor(executor) == 0


def test_a_repeatable_executor_runs_on_new_addresses(device, tensors, armed):
    operands, given, dx, workspace, size, executor, expected = armed
    launch = acl.nn.group_normalization_grad
    assert acl.set_acl_op_executor_repeatable(executor) == 0
    assert launch(workspace, size, executor, device.stream) == 0
    device.synchronize()
    assert bits(tensors.read(operands[0], dx)) == bits(expected)

    doubled = operands[1] * 2
    dy, out = tensors.tensor(doubled), tensors.tensor(np.zeros_like(doubled))
    (dy_address, _), (out_address, _) = acl.get_raw_tensor_addr(dy), acl.get_raw_tensor_addr(out)
    assert acl.set_input_tensor_addr(executor, 1, given[1], dy_address) == 0
    assert acl.set_output_tensor_addr(executor, 0, dx, out_address) == 0
    assert launch(workspace, size, executor, device.stream) == 0
    device.synchronize()
    expected = groupnorm.group_normalization_grad(operands[0], doubled, *operands[2:])
    assert bits(tensors.read(doubled, out)) == bits(expected)
    assert acl.get_raw_tensor_addr(given[1]) == (dy_address, 0)

    for call, words in (
        (lambda: acl.set_input_tensor_addr(executor, 5, dy, dy_address), "index is 5; accepted: below 5"),
        (lambda: acl.set_output_tensor_addr(executor, 1, dy, dy_address), "index is 1; accepted: below 1"),
        (lambda: acl.set_tensor_addr(executor, 6, dy, dy_address), "index is 6; accepted: below 6"),
        (lambda: acl.set_dynamic_tensor_addr(executor, 0, 0, 777, dy_address), "not an aclTensorList"),
    ):
        assert call() == INVALID
        assert words in message()
    assert acl.set_tensor_addr(None, 0, dy, dy_address) == 561103
    assert acl.set_tensor_addr(executor, 0, None, dy_address) == NULL
    assert acl.set_tensor_addr(executor, 5, out, 4096) == 0
    assert launch(workspace, size, executor, device.stream) == INVALID
    assert "dx is 0x1000, which is not device memory" in message()
    assert acl.destroy_acl_op_executor(executor) == 0


def test_raw_addresses_do_not_reach_an_executor(device, tensors, armed):
    operands, _, dx, workspace, size, executor, expected = armed
    other = tensors.block(np.full_like(operands[0], 5))
    own, _ = acl.get_raw_tensor_addr(dx)
    assert acl.set_raw_tensor_addr(dx, other) == 0
    assert acl.nn.group_normalization_grad(workspace, size, executor, device.stream) == 0
    device.synchronize()
    assert (tensors.read(operands[0], dx) == 5).all()
    assert acl.set_raw_tensor_addr(dx, own) == 0
    assert bits(tensors.read(operands[0], dx)) == bits(expected)
    assert acl.set_raw_tensor_addr(None, own) == NULL
    assert acl.get_raw_tensor_addr(None)[-1] == NULL


def test_a_tensor_without_data_gets_it_before_phase_2(device, tensors, armed):
    operands, given, _, workspace, size, executor, expected = armed
    assert acl.destroy_acl_op_executor(executor) == 0
    shape = list(operands[0].shape)
    empty = acl.create_tensor(shape, len(shape), 0, None, 0, ND, shape, len(shape), None)
    size, executor, ret = acl.nn.group_normalization_grad_get_workspace_size(*given, empty)
    assert ret == 0
    assert acl.nn.group_normalization_grad(workspace, size, executor, device.stream) == NULL
    assert "the address of dx is null" in message()
    block = tensors.block(np.zeros_like(operands[0]))
    assert acl.set_output_tensor_addr(executor, 0, empty, block) == 0
    assert acl.nn.group_normalization_grad(workspace, size, executor, device.stream) == 0
    device.synchronize()
    assert bits(tensors.read(operands[0], empty)) == bits(expected)
    assert acl.destroy_tensor(empty) == 0


def test_memory_that_two_share(device, tensors, armed):
    operands, given, _, workspace, size, executor, _ = armed
    assert acl.destroy_acl_op_executor(executor) == 0
    x = operands[0]
    double = tensors.block(np.zeros((2, *x.shape), x.dtype))
    phase1 = acl.nn.group_normalization_grad_get_workspace_size
    first, shifted = tensors.tensor(x, address=double), tensors.tensor(x, address=double + 64)
    assert phase1(first, *given[1:], shifted)[-1] == INVALID
    assert "dx, 0x" in message()
    inside = tensors.tensor(x, address=workspace)
    if x.nbytes <= size:
        _, executor, ret = phase1(*given, inside)
        assert ret == 0
        assert acl.nn.group_normalization_grad(workspace, size, executor, device.stream) == INVALID
        assert "shares memory" in message()
        assert acl.destroy_acl_op_executor(executor) == 0


def test_views_that_leave_their_memory(device, tensors):
    x, stats = np.zeros((2, 4, 8), np.float32), np.ones((2, 4), np.float32)
    plain, gamma, mean = tensors.tensor(x), tensors.tensor(x), tensors.tensor(stats)
    phase1 = acl.nn.group_normalization_grad_get_workspace_size
    outside = "accepted: a view that stays in its storage"
    for offset, words in ((1, "4 more than its allocation"), (-1, outside), (2**60, outside)):
        shifted = tensors.tensor(x, offset=offset)
        assert phase1(shifted, plain, gamma, mean, mean, plain)[-1] == INVALID
        assert words in message()
    short = tensors.block(x[:1])
    assert phase1(tensors.tensor(x, address=short), plain, gamma, mean, mean, plain)[-1] == INVALID
    assert "x takes 256 bytes" in message()


def test_a_tensor_keeps_what_it_was_told(tensors):
    base = np.zeros((3, 7), np.float16)
    tensor = tensors.tensor(base, shape=[7, 2], strides=[1, 7], offset=4, fmt=0)
    libc_free = [acl.get_view_shape(tensor), acl.get_storage_shape(tensor), acl.get_view_strides(tensor)]
    assert [(list(dims[:count]), ret) for dims, count, ret in libc_free] == [([7, 2], 0), ([3, 7], 0), ([1, 7], 0)]
    assert acl.get_view_offset(tensor) == (4, 0)
    assert acl.get_format(tensor) == (0, 0)
    assert acl.get_data_type(tensor) == (1, 0)
    assert acl.init_tensor(tensor, [5], 1, 27, None, 0, ND, [5], 1, None) == 0
    assert acl.get_data_type(tensor) == (27, 0)
    assert acl.get_raw_tensor_addr(tensor) == (None, 0)
    assert acl.get_view_offset(None)[-1] == NULL
    assert acl.get_view_offset(99)[-1] == INVALID


def test_making_and_destroying_is_checked():
    assert acl.create_tensor(None, 2, 0, None, 0, ND, [2], 1, None) is None
    assert "viewDims is null" in message()
    assert acl.create_tensor([2], 1, 0, None, 0, ND, None, 1, None) is None
    assert acl.create_tensor([1], 2**40, 0, None, 0, ND, [1], 1, None) is None
    scalar_like = acl.create_tensor(None, 0, 0, None, 0, ND, None, 0, None)
    assert scalar_like
    assert acl.destroy_tensor(scalar_like) == 0
    assert acl.destroy_tensor(scalar_like) == INVALID
    for destroy in (acl.destroy_tensor, acl.destroy_scalar, acl.destroy_int_array, acl.destroy_tensor_list):
        assert destroy(None) == 0
        assert destroy(77) == INVALID
    assert acl.create_bool_array(None, 3) is None


def test_lists_and_arrays():
    value = ctypes.c_double(1.5)
    scalars = [acl.create_scalar(ctypes.addressof(value), 11) for _ in range(2)]
    listed = acl.create_scalar_list(scalars, 2)
    assert acl.get_scalar_list_size(listed) == (2, 0)
    assert acl.destroy_scalar_list(listed) == 0
    assert acl.destroy_scalar(scalars[0]) == INVALID
    tensors = [acl.create_tensor([1], 1, 0, None, 0, ND, [1], 1, None) for _ in range(3)]
    listed = acl.create_tensor_list(tensors, 3)
    assert acl.get_tensor_list_size(listed) == (3, 0)
    assert acl.destroy_tensor_list(listed) == 0
    assert [acl.destroy_tensor(tensor) for tensor in tensors] == [INVALID] * 3
    for make, size, destroy, values in (
        (acl.create_int_array, acl.get_int_array_size, acl.destroy_int_array, [1, 2]),
        (acl.create_float_array, acl.get_float_array_size, acl.destroy_float_array, [1.0]),
        (acl.create_bool_array, acl.get_bool_array_size, acl.destroy_bool_array, [True] * 3),
    ):
        array = make(values, len(values))
        assert size(array) == (len(values), 0)
        assert destroy(array) == 0
        assert size(array)[-1] == INVALID


def test_an_output_mask_of_another_length(device, tensors):
    given = [tensors.tensor(array) for array in (X, X, GROUPS, GROUPS)]
    outs = [tensors.tensor(np.zeros_like(array)) for array in (X, GAMMA, GAMMA)]
    for length in (0, 2, 4):
        mask = acl.create_bool_array([True] * length, length)
        ret = acl.nn.group_norm_backward_get_workspace_size(*given, None, 2, 4, 8, 2, mask, *outs)[-1]
        assert ret == INVALID
        assert f"outputMask has {length} values; accepted: 3" in message()
        acl.destroy_bool_array(mask)
    assert acl.nn.group_norm_backward_get_workspace_size(*given, None, 2, 4, 8, 2, None, *outs)[-1] == NULL
    mask = acl.create_bool_array([True] * 3, 3)
    assert acl.nn.group_norm_backward_get_workspace_size(*given, None, 2, 4, 8, 2, mask, None, *outs[1:])[-1] == NULL
    assert "gradInput is null" in message()
    huge = (2**40, 2**40, 2**40)
    assert acl.nn.group_norm_backward_get_workspace_size(*given, None, *huge, 1, mask, *outs)[-1] == INVALID
    acl.destroy_bool_array(mask)


def test_a_fault_while_running_comes_with_the_synchronise():
    code = """
import os, numpy as np
from groupnorm import aclnn
x, stats = np.zeros((2, 4, 8), np.float32), np.ones((2, 4), np.float32)
with aclnn.Device(0) as device:
    arrays = [device.upload(array) for array in (x, x, x, stats, stats)]
    os.environ["GROUPNORM_ISA"] = "none"
    aclnn.group_normalization_grad(*arrays)
    try:
        device.synchronize()
    except aclnn.AclError as error:
        print(error.function, error.code, "GROUPNORM_ISA" in error.message)
    del os.environ["GROUPNORM_ISA"]
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.stdout == "aclrtSynchronizeStream 507035 True\n", result.stderr
    assert result.returncode == 0, result.stderr

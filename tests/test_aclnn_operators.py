"""The aclnn operators through the C interface: their results are the core's to the bit, their errors the document's."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import numpy as np
import pytest

import groupnorm
from conftest import BFLOAT16, LOW_DTYPES, bits, channels_last
from groupnorm import aclnn, cases, tolerance
from groupnorm.aclnn.device import acl_dtype
from groupnorm.cases import SMALL
from groupnorm.reference import to_float64

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


# ---- results ----


@pytest.mark.parametrize("dtype", LOW_DTYPES, ids=str)
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_operator_a(case, dtype):
    operands = grouped(case, dtype)
    dx = aclnn.group_normalization_grad(*operands)
    assert same([dx], [groupnorm.group_normalization_grad(*operands)])


@pytest.mark.parametrize(
    "mask", [(True, True, True), (True, False, False), (False, True, False), (False, False, False)]
)
@pytest.mark.parametrize("dtype", LOW_DTYPES, ids=str)
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_operator_b(case, dtype, mask):
    x, dy, gamma, mean, rstd = inputs_of(case, dtype)
    for statistics in {np.dtype(dtype), np.dtype(np.float32)}:
        given = [dy, x, *(v.astype(statistics) for v in (mean, rstd, gamma))]
        assert same(
            aclnn.group_norm_backward(*given, output_mask=mask),
            groupnorm.group_norm_backward(*given, output_mask=mask),
        )
    assert same(
        aclnn.group_norm_backward(dy, x, mean, rstd, output_mask=mask),
        groupnorm.group_norm_backward(dy, x, mean, rstd, output_mask=mask),
    )


def _rounded_once(statistics, expected):
    """mean and rstd in x's dtype, beside float32 ones: half an ulp away, and what float32 had rounded off before."""
    for stat, wide in zip(statistics, expected, strict=True):
        exact = to_float64(wide)
        half = 0 if wide.dtype == stat.dtype else 0.5 * tolerance.ulp(exact, stat.dtype) * (1 + 2.0**-10)
        if not (np.abs(to_float64(stat) - exact) <= half).all():
            return False
    return True


@pytest.mark.parametrize("dtype", LOW_DTYPES, ids=str)
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_forwards(case, dtype):
    x, _, gamma, _, _ = inputs_of(case, dtype)
    beta = (gamma.astype(np.float32) * 0.5 - 0.25).astype(dtype)
    groups = case.num_groups
    for parameters in ((None, None), (gamma, None), (gamma, beta)):
        expected = groupnorm.group_norm(x, groups, *parameters)
        result = aclnn.group_norm(x, groups, *parameters)
        assert bits(result.y) == bits(expected.y)
        assert {stat.dtype for stat in result[1:]} == {x.dtype}
        assert _rounded_once(result[1:], expected[1:])
        silu = groupnorm.group_norm(x, groups, *parameters, activation="swish")
        result = aclnn.group_norm_silu(x, groups, *parameters)
        assert bits(result.y) == bits(silu.y)
        assert _rounded_once(result[1:], expected[1:])
    wide = gamma.astype(np.float32), beta.astype(np.float32)
    expected = groupnorm.group_norm(x, groups, *wide, activation="swish", swish_scale=1.702)
    result = aclnn.group_norm_swish(x, groups, *wide, swish_scale=1.702)
    assert same(result, [expected.y, *(stat.astype(np.float32) for stat in expected[1:])])


@pytest.mark.parametrize("scale", [1.0, 1.702, -0.5])
@pytest.mark.parametrize("dtype", LOW_DTYPES, ids=str)
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_swish_gradient(case, dtype, scale):
    x, dy, gamma, mean, rstd = inputs_of(case, dtype)
    beta = (gamma.astype(np.float32) * 0.5 - 0.25).astype(dtype)
    expected = groupnorm.group_norm_backward(dy, x, mean, rstd, gamma, beta=beta, activation="swish", swish_scale=scale)
    assert same(aclnn.group_norm_swish_grad(dy, x, mean, rstd, gamma, beta, swish_scale=scale), expected)


def test_silu_v2_says_whether(device, tensors):
    x, _, gamma, mean, _ = inputs_of(SMALL[1], np.dtype(np.float32))
    for activate in (True, False):
        given = [tensors.tensor(array) for array in (x, gamma)]
        outs = [tensors.tensor(np.zeros_like(array)) for array in (x, mean, mean)]
        run(device, "group_norm_silu_v2", *given, None, mean.shape[1], 1e-5, activate, *outs)
        expected = groupnorm.group_norm(x, mean.shape[1], gamma, activation="swish" if activate else None)
        assert bits(tensors.read(x, outs[0])) == bits(expected.y)


@pytest.mark.parametrize("dtype", LOW_DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_views_of_every_kind(device, tensors, case, dtype):
    """Transposed, channels-last, reversed, sliced and offset tensors, on the way in and on the way out."""
    x, dy, gamma, mean, rstd = inputs_of(case, dtype)
    expected = groupnorm.group_norm_backward(dy, x, mean, rstd, gamma)
    item = x.dtype.itemsize

    def strided(array):
        return [stride // item for stride in array.strides]

    last = channels_last(x)
    flat = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    x_last = tensors.tensor(flat, shape=x.shape, strides=strided(last))
    # dy backwards in memory, from the last element on.
    backwards = np.ascontiguousarray(dy)[tuple([slice(None, None, -1)] * dy.ndim)]
    dy_back = tensors.tensor(
        np.ascontiguousarray(backwards),
        shape=dy.shape,
        strides=[-stride for stride in strided(np.ascontiguousarray(dy))],
        offset=dy.size - 1,
    )
    # Every other element of a longer vector, after three that are not its own.
    spread = np.full(3 + 2 * gamma.size, 7, gamma.dtype)
    spread[3::2] = gamma
    gamma_spread = tensors.tensor(spread, shape=gamma.shape, strides=[2], offset=3)
    turned = np.ascontiguousarray(mean.T)
    mean_turned = tensors.tensor(turned, shape=mean.shape, strides=strided(turned.T))
    rstd_plain = tensors.tensor(rstd)
    padded = np.zeros((*x.shape[:-1], x.shape[-1] + 5), dtype)
    dx = tensors.tensor(padded, shape=x.shape, strides=strided(padded), offset=2)
    dgamma = tensors.tensor(np.zeros(2 * gamma.size, dtype), shape=gamma.shape, strides=[2])
    dbeta = tensors.tensor(np.zeros_like(gamma))
    mask = acl.create_bool_array([True] * 3, 3)
    n, c, length = x.shape[0], x.shape[1], x[0, 0].size
    run(
        device, "group_norm_backward", dy_back, x_last, mean_turned, rstd_plain, gamma_spread,
        n, c, length, case.num_groups, mask, dx, dgamma, dbeta,
    )  # fmt: skip
    assert acl.destroy_bool_array(mask) == 0
    wide = tensors.read(padded, dx)
    assert bits(wide.reshape(-1)[2:].tobytes() and wide[..., 2:-3]) == bits(expected.dx)
    assert not wide[..., :2].any()
    assert not wide[..., -3:].any()
    spread = tensors.read(np.zeros(2 * gamma.size, dtype), dgamma)
    assert bits(spread[::2]) == bits(expected.dgamma)
    assert not spread[1::2].any()
    assert bits(tensors.read(gamma, dbeta)) == bits(expected.dbeta)


def test_results_in_the_place_of_an_input(device, tensors):
    operands = grouped(SMALL[1], np.dtype(np.float32))
    expected = groupnorm.group_normalization_grad(*operands)
    for place in (0, 1, 2):
        given = [tensors.tensor(array) for array in operands]
        address, _ = acl.get_raw_tensor_addr(given[place])
        dx = tensors.tensor(operands[0], address=address)
        run(device, "group_normalization_grad", *given, dx)
        assert bits(tensors.read(operands[0], dx)) == bits(expected)


@pytest.mark.parametrize("shape", [(0, 4, 8), (2, 0, 8), (2, 4, 0), (2, 4, 3, 0, 5)])
def test_empty_tensors(shape):
    x = np.zeros(shape, np.float32)
    stats = np.ones(shape[:2], np.float32)
    assert aclnn.group_normalization_grad(x, x, x, stats, stats).shape == shape
    groups = np.ones((shape[0], 2), np.float32)
    gamma = np.ones(shape[1], np.float32)
    grads = aclnn.group_norm_backward(x, x, groups, groups, gamma)
    assert grads.dx.shape == shape
    assert (grads.dgamma == 0).all()
    assert (grads.dbeta == 0).all()
    expected = groupnorm.group_norm(x, 2, gamma)
    assert same(aclnn.group_norm(x, 2, gamma), expected)


# ---- errors of phase 1 ----

X = np.zeros((2, 4, 8), np.float32)
STATS = np.ones((2, 4), np.float32)
HALF_STATS = STATS.astype(np.float16)
GROUPS = np.ones((2, 2), np.float32)
GAMMA = np.ones(4, np.float32)


def _a(**changes):
    given = {"x": X, "dy": X, "gamma": X, "mean": STATS, "rstd": STATS, **changes}
    return aclnn.group_normalization_grad(*given.values())


def _b(**changes):
    given = {"dy": X, "x": X, "mean": GROUPS, "rstd": GROUPS, "gamma": GAMMA, **changes}
    return aclnn.group_norm_backward(*given.values())


def _c(x=X, groups=2, gamma=GAMMA, beta=GAMMA, eps=1e-5):
    return aclnn.group_norm(x, groups, gamma, beta, eps)


def _silu(x=X, groups=2, gamma=GAMMA, beta=GAMMA, eps=1e-5):
    return aclnn.group_norm_silu(x, groups, gamma, beta, eps)


def _swish(x=X, groups=2, gamma=GAMMA, beta=GAMMA, eps=1e-5, scale=1.0):
    return aclnn.group_norm_swish(x, groups, gamma, beta, eps, swish_scale=scale)


def _swish_grad(scale=1.0, **changes):
    given = {"dy": X, "x": X, "mean": GROUPS, "rstd": GROUPS, "gamma": GAMMA, "beta": GAMMA, **changes}
    return aclnn.group_norm_swish_grad(*given.values(), swish_scale=scale)


F16, F64 = np.float16, np.float64
ERRORS = {
    **{f"A {name} null": (lambda name=name: _a(**{name: None}), NULL, f"{name} is null") for name in ("dy", "gamma", "mean", "rstd")},
    "A dtype": (lambda: _a(x=X.astype(F64)), INVALID, "x has dtype ACL_DOUBLE (11); accepted: ACL_FLOAT, ACL_FLOAT16 or ACL_BF16"),
    "A int": (lambda: _a(x=X.astype(np.int32)), INVALID, "x has dtype ACL_INT32 (3)"),
    **{
        f"A dtype of {name}": (lambda name=name, value=value: _a(**{name: value}), INVALID, f"{name} has dtype ACL_FLOAT16 (1); accepted: that of x")
        for name, value in {"dy": X.astype(F16), "gamma": X.astype(F16), "mean": HALF_STATS, "rstd": HALF_STATS}.items()
    },
    "A rank 2": (lambda: _a(x=X[0], dy=X[0], gamma=X[0]), INVALID, "x has 2 dimensions; accepted: 3 to 8"),
    "A rank 9": (lambda: _a(x=X.reshape(2, 4, 8, *[1] * 6)), INVALID, "x has 9 dimensions; accepted: 3 to 8"),
    "A rank of gamma": (lambda: _a(gamma=GAMMA), INVALID, "gamma has shape [4]; accepted: [2, 4, 8], the shape of x, to which gamma is broadcast already"),
    "A shape of dy": (lambda: _a(dy=X[:, :, 1:]), INVALID, "dy has shape [2, 4, 7]; accepted: [2, 4, 8]"),
    "A shape of gamma": (lambda: _a(gamma=X[:1]), INVALID, "gamma has shape [1, 4, 8]; accepted: [2, 4, 8]"),
    "A shape of mean": (lambda: _a(mean=STATS.T), INVALID, "mean has shape [4, 2]; accepted: [2, 4]"),
    "A shape of rstd": (lambda: _a(rstd=STATS.ravel()), INVALID, "rstd has shape [8]; accepted: [2, 4]"),
    **{f"B {name} null": (lambda name=name: _b(**{name: None}), NULL, f"{word} is null") for name, word in {"dy": "gradOut", "mean": "mean", "rstd": "rstd"}.items()},
    "B dtype": (lambda: _b(dy=X.astype(F64)), INVALID, "gradOut has dtype ACL_DOUBLE"),
    "B dtype of x": (lambda: _b(x=X.astype(F16)), INVALID, "input has dtype ACL_FLOAT16 (1); accepted: that of gradOut"),
    "B dtype of mean": (lambda: _b(mean=GROUPS.astype(F16)), INVALID, "mean has dtype ACL_FLOAT16"),
    "B dtype of rstd": (lambda: _b(rstd=GROUPS.astype(F16)), INVALID, "rstd has dtype ACL_FLOAT16 (1); accepted: that of mean"),
    "B dtype of gamma": (lambda: _b(gamma=GAMMA.astype(F16)), INVALID, "gamma has dtype ACL_FLOAT16 (1); accepted: that of mean"),
    "B elements of dy": (lambda: _b(dy=X[:1]), INVALID, "gradOut has 32 elements"),
    "B elements of mean": (lambda: _b(mean=GROUPS[:1]), INVALID, "mean has 2 elements"),
    "B elements of gamma": (lambda: _b(gamma=GAMMA[1:]), INVALID, "gamma has 3 elements, shape [3]; accepted: 4"),
    "B groups": (lambda: _b(mean=np.ones((2, 3), np.float32)), INVALID, "group is 3; accepted: a divisor of the 4 channels"),
    "B no groups": (lambda: _b(mean=np.ones((2, 0), np.float32)), INVALID, "group is 0; accepted: 1 or more"),
    "B too many channels a group": (lambda: _b(dy=np.zeros((1, 8001, 1), F16), x=np.zeros((1, 8001, 1), F16), mean=np.ones((1, 1), F16), rstd=np.ones((1, 1), F16), gamma=None), INVALID, "C / group is 8001; accepted: up to 8000"),
    "C groups": (lambda: _c(groups=3), INVALID, "group is 3; accepted: a divisor"),
    "C group 0": (lambda: _c(groups=0), INVALID, "group is 0; accepted: 1 or more"),
    "C group -1": (lambda: _c(groups=-1), INVALID, "group is -1; accepted: 1 or more"),
    "C eps 0": (lambda: _c(eps=0.0), INVALID, "eps is 0; accepted: a finite number above 0"),
    "C eps nan": (lambda: _c(eps=float("nan")), INVALID, "eps is nan"),
    "C dtype of gamma": (lambda: _c(gamma=GAMMA.astype(F16)), INVALID, "gamma has dtype"),
    "C dtype of beta": (lambda: _c(beta=GAMMA.astype(F16)), INVALID, "beta has dtype"),
    "C shape of gamma": (lambda: _c(gamma=GAMMA[1:]), INVALID, "gamma has shape [3]; accepted: [4]"),
    "C shape of beta": (lambda: _c(beta=GAMMA.reshape(2, 2)), INVALID, "beta has shape [2, 2]; accepted: [4]"),
    "C rank 1": (lambda: _c(x=GAMMA, groups=1), INVALID, "self has 1 dimensions; accepted: 2 to 8"),
    "silu empty": (lambda: _silu(x=X[:0]), INVALID, "N, the first dimension of self"),
    "silu mixed": (lambda: _silu(gamma=GAMMA.astype(F16)), INVALID, "gamma has dtype ACL_FLOAT16"),
    "silu beta": (lambda: _silu(x=X.astype(F16), beta=GAMMA.astype(F16)), INVALID, "beta has dtype ACL_FLOAT16 (1); accepted: that of gamma"),
    "silu eps": (lambda: _silu(eps=-1.0), INVALID, "eps is -1"),
    "swish gamma": (lambda: _swish(gamma=None), NULL, "gamma is null"),
    "swish empty": (lambda: _swish(x=X[..., :0]), INVALID, "accepted: a tensor that is not empty"),
    "swish scale": (lambda: _swish(scale=float("inf")), INVALID, "swishScale is inf"),
    **{f"swish grad {name} null": (lambda name=name: _swish_grad(**{name: None}), NULL, f"{name} is null") for name in ("dy", "mean", "rstd")},
    "swish grad dtype": (lambda: _swish_grad(mean=GROUPS.astype(F16)), INVALID, "mean has dtype ACL_FLOAT16 (1); accepted: that of dy"),
    "swish grad shape": (lambda: _swish_grad(mean=GROUPS[:, :1]), INVALID, "rstd has shape [2, 2]; accepted: [2, 1]"),
    "swish grad scale": (lambda: _swish_grad(scale=float("nan")), INVALID, "swishScale is nan"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "code", "words"), ERRORS.values(), ids=ERRORS)
def test_an_error_has_its_code_and_names_the_argument(call, code, words):
    with pytest.raises(aclnn.AclError) as raised:
        call()
    assert raised.value.code == code
    assert words in raised.value.message, raised.value
    assert raised.value.name in ("ACLNN_ERR_PARAM_NULLPTR", "ACLNN_ERR_PARAM_INVALID")
    assert raised.value.cause


# ---- tensors, executors, workspaces ----


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


# ---- the Python side ----


def test_arrays_on_the_device_are_queued_and_kept(device):
    operands = grouped(SMALL[4], BFLOAT16)
    uploaded = [device.upload(array) for array in operands]
    results = [aclnn.group_normalization_grad(*uploaded) for _ in range(10)]
    expected = bits(groupnorm.group_normalization_grad(*operands))
    assert all(bits(result.numpy()) == expected for result in results)
    with pytest.raises(TypeError, match="dy: not a DeviceArray as x is"):
        aclnn.group_normalization_grad(uploaded[0], operands[1], *uploaded[2:])
    uploaded[0].free()
    with pytest.raises(ValueError, match="was freed"):
        aclnn.group_normalization_grad(*uploaded)


def test_device_arrays_outside_a_device():
    with aclnn.Device(0) as device:
        array = device.upload(X)
    with pytest.raises(RuntimeError, match="outside `with Device"):
        aclnn.group_normalization_grad(array, array, array, array, array)


def test_a_device_leaves_nothing_behind(capfd):
    with aclnn.Device(0) as device:
        device.upload(X)
        assert aclnn.group_norm(X, 2).y.shape == X.shape
    assert capfd.readouterr().err == ""
    assert acl.finalize() == 100037


def test_a_device_that_is_not_there_leaves_acl_as_it_was():
    with (
        pytest.raises(aclnn.AclError, match=r"107001 \(ACL_ERROR_RT_INVALID_DEVICEID\).*GROUPNORM_ACL_DEVICES"),
        aclnn.Device(5),
    ):
        pass
    assert acl.finalize() == 100037


def test_acl_that_someone_else_initialised_stays():
    assert acl.init() == 0
    with aclnn.Device(0):
        pass
    assert acl.init() == 100002
    assert acl.finalize() == 0


def test_views_are_made_contiguous_on_the_way():
    operands = grouped(SMALL[1], np.dtype(np.float32))
    turned = [np.asfortranarray(array) for array in operands]
    expected = groupnorm.group_normalization_grad(*operands)
    assert bits(aclnn.group_normalization_grad(*turned)) == bits(expected)

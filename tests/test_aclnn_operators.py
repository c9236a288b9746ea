"""The aclnn operators through the C interface: their results are the core's to the bit, their errors the document's."""

from __future__ import annotations

import numpy as np
import pytest

import groupnorm
from conftest import BFLOAT16, LOW_DTYPES, bits, channels_last
from groupnorm import aclnn, tolerance
from groupnorm.cases import SMALL
from groupnorm.reference import to_float64
from operators import CASES, INVALID, NULL, acl, device, grouped, inputs_of, message, run, same, tensors  # noqa: F401

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

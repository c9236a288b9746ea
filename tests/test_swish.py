"""The swish activation in operators B and C: float64 truth, central differences, bits, limits, NaN."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import groupnorm
from conftest import DTYPES, ISA_LEVELS, bits, channels_last
from groupnorm import _core, cases, reference, tolerance
from groupnorm.cases import FAMILIES, ORDINARY, SMALL, Case, uniform
from groupnorm.reference import to_float64

FLOAT32 = np.dtype(np.float32)
SCALES = (0.5, 1.0, 1.702, -1.0, 0.0)
LONG = Case("long", (1, 8, 32, 64, 64), 2)  # M = 524288
# Threads share the work, a group is split, a channel has several chunks.
SHARED_OUT = [
    Case("groups_over_threads", (4, 32, 24, 24), 8),
    Case("one_group", (1, 6, 100, 101), 1),
    Case("rows_of_the_batch", (700, 64), 8),
]


@pytest.fixture(autouse=True)
def _level_kept():
    yield
    _core.select_isa(None)


def _beta(inputs, size=0.5, seed=9):
    return (size * uniform(inputs.gamma.shape, seed)).astype(inputs.gamma.dtype)


def _operands(inputs):
    return inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma


def _moved(inputs, layout):
    move = channels_last if layout == "channels_last" and inputs.x.ndim > 2 else lambda a: a
    return inputs._replace(x=move(inputs.x), dy=move(inputs.dy))


def _swish(scale, **options):
    return dict(activation="swish", swish_scale=scale, **options)


def _within_bounds(inputs, beta, scale, layout="contiguous"):
    options = _swish(scale, beta=beta)
    result = groupnorm.group_norm_backward(*_operands(_moved(inputs, layout)), **options)
    truth = reference.group_norm_backward(*_operands(inputs), **options)
    bounds = tolerance.swish_backward_bounds(*_operands(inputs), beta, scale, truth)
    for name in ("dx", "dgamma", "dbeta"):
        error = np.abs(to_float64(getattr(result, name)) - getattr(truth, name))
        assert (error <= getattr(bounds, name)).all(), name
    return result, truth


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_backward_keeps_derived_bounds(isa, dtype, family, layout):
    # SMALL has D = 1, HxW = 1, G = 1 and G = C.
    for case, scale in zip(SMALL, itertools.cycle(SCALES), strict=False):
        inputs = cases.make(case, dtype, family=family)
        _within_bounds(inputs, _beta(inputs), scale, layout)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scales(isa, dtype, scale):
    inputs = cases.make(Case("case", (2, 12, 9, 10), 3), dtype, family="dy_offset")
    for beta in (None, _beta(inputs), _beta(inputs, 8)):
        _within_bounds(inputs, beta, scale)
    _within_bounds(inputs._replace(gamma=None), None, scale)


@pytest.mark.parametrize("seed", [1, 11])
@pytest.mark.parametrize("family", ORDINARY)
@pytest.mark.parametrize("case", [*(case for case in SMALL if case.name != "one_element"), LONG], ids=lambda c: c.name)
def test_float32_backward_keeps_the_contract(case, family, seed):
    inputs = cases.make(case, FLOAT32, family=family, seed=seed)
    for scale in SCALES:
        options = _swish(scale, beta=_beta(inputs))
        result = groupnorm.group_norm_backward(*_operands(inputs), **options)
        truth = reference.group_norm_backward(*_operands(inputs), **options)
        for name, bound in tolerance.CONTRACT_SWISH.items():
            largest = np.abs(getattr(truth, name)).max()
            assert np.abs(getattr(result, name) - getattr(truth, name)).max() <= bound * largest, (name, scale)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("family", ["centred", "offset_100", "offset_10000"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_forward_matches_the_reference(isa, dtype, family, layout):
    for case, scale in zip(SMALL, itertools.cycle(SCALES), strict=False):
        inputs = cases.make(case, dtype, family=family)
        order = case.num_groups, inputs.gamma, _beta(inputs)
        result = groupnorm.group_norm(_moved(inputs, layout).x, *order, **_swish(scale))
        plain = groupnorm.group_norm(inputs.x, *order)
        assert bits(result.mean) == bits(plain.mean)
        assert bits(result.rstd) == bits(plain.rstd)
        truth = reference.group_norm(inputs.x, *order, **_swish(scale)).y
        # The error of gn (test_accuracy) times the slope of swish, at most 1.1; of the sigmoid 4.3 roundings, of
        # t = swish_scale * gn two, which move it by at most 0.23 each; the product one. y has its own rounding.
        u = tolerance.unit_roundoff(result.mean.dtype)
        largest = np.abs(reference.group_norm(inputs.x, *order).y).max() + 2
        roundings = 1.1 * (5 + 2 * tolerance.ROUNDINGS) + 4.3 + 0.5 + 1
        if case.name == "one_element":  # x - mean is 0
            roundings = 4.3 + 0.5 + 1
        bound = (
            roundings * u * largest + tolerance.unit_roundoff(dtype) * np.abs(truth) + tolerance.ulp(0 * truth, dtype)
        )
        assert (np.abs(to_float64(result.y) - truth) <= bound).all(), case.name


def test_the_reference_is_the_gradient_of_the_reference():
    case = Case("case", (2, 6, 3, 4), 3)
    inputs = cases.make(case, np.float64)
    x, dy, gamma, mean, rstd = inputs
    mean, rstd = reference.group_norm(x, 3, eps=1e-5)[1:]
    beta = _beta(inputs)

    def differences(function, at):
        step = 1e-5
        gradient = np.empty_like(at)
        for index in np.ndindex(at.shape):
            ahead, behind = at.copy(), at.copy()
            ahead[index] += step
            behind[index] -= step
            gradient[index] = (function(ahead) - function(behind)) / (2 * step)
        return gradient

    for scale in SCALES:

        def loss(x, gamma, beta, scale=scale):
            return float((dy * reference.group_norm(x, 3, gamma, beta, 1e-5, **_swish(scale)).y).sum())

        grads = reference.group_norm_backward(dy, x, mean, rstd, gamma, **_swish(scale, beta=beta))
        # Truncation is of order step^2 = 1e-10 times third derivatives, cancellation 1e-16 / step = 1e-11.
        np.testing.assert_allclose(grads.dx, differences(lambda v: loss(v, gamma, beta), x), atol=1e-8)
        np.testing.assert_allclose(grads.dgamma, differences(lambda v: loss(x, v, beta), gamma), atol=1e-8)
        np.testing.assert_allclose(grads.dbeta, differences(lambda v: loss(x, gamma, v), beta), atol=1e-8)


def test_torch_silu():
    torch = pytest.importorskip("torch", reason="torch is not installed: `make test` installs it")
    inputs = cases.make(Case("case", (2, 6, 3, 4), 3), np.float64)
    beta = _beta(inputs)
    forward = groupnorm.group_norm(inputs.x, 3, inputs.gamma, beta, activation="swish")
    ours = groupnorm.group_norm_backward(
        inputs.dy, inputs.x, forward.mean, forward.rstd, inputs.gamma, activation="swish", beta=beta
    )
    tensors = [torch.tensor(a, requires_grad=True) for a in (inputs.x, inputs.gamma, beta)]
    y = torch.nn.functional.silu(torch.nn.functional.group_norm(tensors[0], 3, *tensors[1:], 1e-5))
    y.backward(torch.tensor(inputs.dy))
    np.testing.assert_allclose(forward.y, y.detach().numpy(), rtol=0, atol=1e-12)
    for tensor, grad in zip(tensors, ours, strict=True):
        np.testing.assert_allclose(grad, tensor.grad.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [*SMALL, *SHARED_OUT], ids=lambda case: case.name)
def test_bits(case, dtype):
    inputs = cases.make(case, dtype, family="dy_offset")
    beta = _beta(inputs)
    masks = list(itertools.product((True, False), repeat=3))
    options = _swish(1.702)
    expected = groupnorm.group_norm_backward(*_operands(inputs), beta=beta, num_threads=1, **options)
    expected_forward = groupnorm.group_norm(inputs.x, case.num_groups, inputs.gamma, beta, num_threads=1, **options)
    for level, threads, layout in itertools.product(ISA_LEVELS, (1, 2, 3), ("contiguous", "channels_last")):
        assert _core.select_isa(level)
        moved = _moved(inputs, layout)
        for mask in masks:
            result = groupnorm.group_norm_backward(
                *_operands(moved), beta=beta, output_mask=mask, num_threads=threads, **options
            )
            for array, whole in zip(result, expected, strict=True):
                assert array is None or bits(array) == bits(whole), (level, threads, layout, mask)
        forward = groupnorm.group_norm(moved.x, case.num_groups, inputs.gamma, beta, num_threads=threads, **options)
        for array, whole in zip(forward, expected_forward, strict=True):
            assert bits(array) == bits(whole), (level, threads, layout)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dx_of_a_sample_does_not_depend_on_its_batch_nor_on_where_it_is_written(dtype):
    inputs = cases.make(Case("batch", (6, 12, 30, 31), 3), dtype)
    options = _swish(1.0, beta=_beta(inputs))
    whole = groupnorm.group_norm_backward(*_operands(inputs), **options)
    one = inputs._replace(**{name: getattr(inputs, name)[2:3] for name in ("x", "dy", "mean", "rstd")})
    assert bits(groupnorm.group_norm_backward(*_operands(one), **options).dx) == bits(whole.dx[2:3])
    for name in ("x", "dy"):
        copies = inputs._replace(**{name: getattr(inputs, name).copy()})
        out = (getattr(copies, name), None, None)
        assert bits(groupnorm.group_norm_backward(*_operands(copies), out=out, **options).dx) == bits(whole.dx)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scale_0_halves(isa, dtype):
    """sigmoid(0) is 1/2 and its slope plays no part: the bits of half a dy."""
    inputs = cases.make(Case("case", (2, 12, 9, 10), 3), dtype, family="offset_100")
    half = inputs._replace(dy=(inputs.dy * dtype.type(0.5)).astype(dtype))
    result = groupnorm.group_norm_backward(*_operands(inputs), **_swish(0))
    for array, plain in zip(result, groupnorm.group_norm_backward(*_operands(half)), strict=True):
        assert bits(array) == bits(plain)
    y = groupnorm.group_norm(inputs.x, 3, inputs.gamma, **_swish(0)).y
    plain = groupnorm.group_norm(inputs.x, 3, inputs.gamma).y
    assert (np.abs(to_float64(y) - to_float64(plain) / 2) <= tolerance.ulp(to_float64(y), dtype)).all()


@pytest.mark.parametrize("size", [1e3, 1e4, 3e4, 1e30, 3e38])
@pytest.mark.parametrize("scale", [1.0, -2.5, 1e30])
def test_limits_of_large_gn(isa, scale, size):
    """Far out swish is the identity on one side and 0 on the other, and so are its gradients."""
    inputs = cases.make(Case("case", (2, 8, 5, 7), 2), np.float32)
    identity, zero = (np.full(8, sign * size * np.sign(scale), np.float32) for sign in (1, -1))
    plain = groupnorm.group_norm_backward(*_operands(inputs))
    result = groupnorm.group_norm_backward(*_operands(inputs), **_swish(scale, beta=identity))
    for array, expected in zip(result, plain, strict=True):
        assert bits(array) == bits(expected)
    result = groupnorm.group_norm_backward(*_operands(inputs), **_swish(scale, beta=zero))
    assert all((array == 0).all() for array in result)
    y = groupnorm.group_norm(inputs.x, 2, inputs.gamma, identity, **_swish(scale)).y
    assert bits(y) == bits(groupnorm.group_norm(inputs.x, 2, inputs.gamma, identity).y)
    assert (groupnorm.group_norm(inputs.x, 2, inputs.gamma, zero, **_swish(scale)).y == 0).all()


@pytest.mark.parametrize("dtype", [FLOAT32, np.dtype(np.float64)], ids=str)
def test_every_size_of_gn(isa, dtype):
    """beta takes gn through exp's whole range: 1, subnormal, 0, and the zero of the slope at -1.278."""
    c = 512
    inputs = cases.make(Case("case", (1, c, 3, 5), c), dtype)
    beta = np.linspace(-800, 800, c)
    beta[:64] = np.linspace(-2, 2, 64)
    beta[64:128] = np.linspace(-110, -80, 64)
    beta = beta.astype(dtype)
    for scale in (1.0, -0.5):
        _within_bounds(inputs, beta, scale)
        y = groupnorm.group_norm(inputs.x, c, inputs.gamma, beta, **_swish(scale)).y
        truth = reference.group_norm(inputs.x, c, inputs.gamma, beta, **_swish(scale)).y
        u = tolerance.unit_roundoff(dtype)
        gn = np.abs(reference.group_norm(inputs.x, c, inputs.gamma, beta).y)
        # gn is off by (5 + 2 ROUNDINGS) u of its parts, y by the slope times that, the rest as above.
        assert (np.abs(y - truth) <= (1.1 * (5 + 2 * tolerance.ROUNDINGS) + 7) * u * (gn + 4)).all()


def test_groups_of_one_element_have_no_gradient(isa):
    for dtype in DTYPES:
        inputs = cases.make(Case("alone", (3, 40, 1), 40), dtype, family="dy_offset")
        result = groupnorm.group_norm_backward(*_operands(inputs), **_swish(1.0, beta=_beta(inputs)))
        assert (result.dx == 0).all()
        assert (result.dgamma == 0).all()


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_and_infinity_stay_in_their_group(dtype, special):
    case = Case("planted", (3, 20, 5, 7), 5)
    clean_inputs = cases.make(case, dtype)
    options = _swish(1.0, beta=_beta(clean_inputs))
    clean = groupnorm.group_norm_backward(*_operands(clean_inputs), **options)
    affected = np.zeros(case.shape, bool)
    affected[1, 8:12] = True
    others = np.r_[0:8, 12:20]
    for operand in ("x", "dy", "mean", "rstd"):
        planted = getattr(clean_inputs, operand).copy()
        planted[(1, 2) if operand in ("mean", "rstd") else (1, 9, 2, 3)] = special  # channel 9: group 2
        inputs = clean_inputs._replace(**{operand: planted})
        found = set()
        for level, layout in itertools.product(ISA_LEVELS, ("contiguous", "channels_last")):
            assert _core.select_isa(level)
            result = groupnorm.group_norm_backward(*_operands(_moved(inputs, layout)), **options)
            found.add(tuple(bits(array) for array in result))
        assert len(found) == 1, operand
        assert bits(result.dx[~affected]) == bits(clean.dx[~affected])
        if operand == "x":
            assert np.isnan(to_float64(result.dx[1, 8:12])).all()
        assert not np.isfinite(to_float64(result.dx[1, 8:12])).all()
        for name in ("dgamma", "dbeta"):
            assert bits(getattr(result, name)[others]) == bits(getattr(clean, name)[others])

    x = clean_inputs.x.copy()
    x[1, 9, 2, 3] = special
    clean_y = groupnorm.group_norm(clean_inputs.x, 5, activation="swish").y
    found = set()
    for level in ISA_LEVELS:
        assert _core.select_isa(level)
        y = groupnorm.group_norm(x, 5, activation="swish").y
        assert np.isnan(to_float64(y[1, 8:12])).all()
        assert bits(y[~affected]) == bits(clean_y[~affected])
        found.add(bits(y))
    assert len(found) == 1


def test_shapes_without_elements():
    for shape in ((0, 4, 3), (2, 4, 0)):
        x, stats = np.zeros(shape, np.float32), np.ones((shape[0], 2), np.float32)
        result = groupnorm.group_norm_backward(x, x, stats, stats, activation="swish", beta=np.ones(4, np.float32))
        truth = reference.group_norm_backward(x, x, stats, stats, activation="swish", beta=np.ones(4, np.float32))
        for array, expected in zip(result, truth, strict=True):
            assert np.array_equal(array, expected)
        assert groupnorm.group_norm(x, 2, activation="swish").y.shape == shape


def test_the_core_refuses_what_it_does_not_have():
    arrays = [np.ones((2, 2), np.float32) for _ in range(5)]
    addresses = [_core.address(array) for array in arrays]

    def backward(recenter, activation, scale):
        dy, x, mean, rstd, dx = addresses
        _core.group_norm_backward(
            0, 0, 0, 0, 0, 2, 2, 1, 2, dy, x, mean, rstd, 0, 0, dx, 0, 0, recenter, activation, scale, 1
        )

    backward(False, 1, 1.0)
    for wrong in ((True, 1, 1.0), (False, 2, 1.0), (False, 1, np.inf), (False, 1, np.nan)):
        with pytest.raises(ValueError, match="options of the problem"):
            backward(*wrong)

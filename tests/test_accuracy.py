"""Operators A, B and C against float64, on every SIMD level: derived bounds, contract figures, exact data."""

from __future__ import annotations

import numpy as np
import pytest

import groupnorm
from conftest import BFLOAT16, DTYPES, LOW_DTYPES, channels_last
from groupnorm import cases, reference, tolerance
from groupnorm.cases import FAMILIES, ORDINARY, SMALL, Case
from groupnorm.reference import to_float64

FLOAT32 = np.dtype(np.float32)
LONG = Case("long", (1, 8, 32, 64, 64), 2)  # M = 524288
# With one element a group the true dx and dgamma are 0: test_public_reports has the exact zeros.
NONZERO = [case for case in SMALL if case.name != "one_element"]


def _relative(result, truth):
    error, largest = np.abs(to_float64(result) - truth).max(), np.abs(truth).max()
    return error / largest if largest else 0.0 if error == 0 else np.inf


def _backward(inputs, layout, **options):
    move = channels_last if layout == "channels_last" and inputs.x.ndim > 2 else lambda a: a
    return groupnorm.group_norm_backward(
        move(inputs.dy), move(inputs.x), inputs.mean, inputs.rstd, inputs.gamma, **options
    )


def _truth(inputs, **options):
    return reference.group_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma, **options)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_backward_keeps_derived_bounds(isa, dtype, family, layout):
    for case in SMALL:
        inputs = cases.make(case, dtype, family=family)
        result = _backward(inputs, layout)
        truth = _truth(inputs)
        bounds = tolerance.backward_bounds(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma, truth)
        for name in ("dx", "dgamma", "dbeta"):
            error = np.abs(to_float64(getattr(result, name)) - getattr(truth, name))
            assert (error <= getattr(bounds, name)).all(), (case.name, name)


@pytest.mark.parametrize("seed", [1, 11])
@pytest.mark.parametrize("family", ORDINARY)
@pytest.mark.parametrize("case", [*NONZERO, LONG], ids=lambda case: case.name)
def test_float32_backward_keeps_the_contract(isa, case, family, seed):
    inputs = cases.make(case, FLOAT32, family=family, seed=seed)
    result, truth = _backward(inputs, "contiguous"), _truth(inputs)
    for name, bound in tolerance.CONTRACT.items():
        assert _relative(getattr(result, name), getattr(truth, name)) <= bound, name


@pytest.mark.parametrize("family", ["centred", "offset_100", "dy_offset", "large"])
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_16_bit_dx_is_the_rounded_truth(isa, dtype, family):
    case = Case("sample", (2, 32, 32, 32), 8)
    inputs = cases.make(case, dtype, family=family)
    result, truth = _backward(inputs, "contiguous"), _truth(inputs)
    dx = to_float64(result.dx)
    assert (dx == tolerance.round_to(truth.dx, dtype)).mean() >= tolerance.CONTRACT_ROUNDED_SHARE
    one_ulp = tolerance.ulp(truth.dx, dtype)
    cancelled = 3e-7 * np.abs(truth.dx).max()  # where |truth| is tiny: the float32 bound on the largest
    assert (np.abs(dx - truth.dx) <= np.maximum(one_ulp, cancelled)).all()


@pytest.mark.parametrize("family", ["centred", "dy_offset", "relu", "pixels", "sparse"])
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_float32_parameters_of_16_bit_x_get_float32_sums(isa, dtype, family):
    for case in [*NONZERO, LONG]:
        inputs = cases.make(case, dtype, family=family)
        result, truth = _backward(inputs, "channels_last"), _truth(inputs)
        assert result.dx.dtype == dtype
        assert result.dgamma.dtype == result.dbeta.dtype == np.float32
        assert _relative(result.dgamma, truth.dgamma) <= tolerance.CONTRACT["dgamma"]
        assert _relative(result.dbeta, truth.dbeta) <= tolerance.CONTRACT["dbeta"]


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exact_data_agrees_to_the_bit(isa, dtype, layout):
    for case in [Case("exact", (3, 8, 4, 16), 2), Case("rows", (2, 32, 256), 8), Case("rank2", (4, 64), 4)]:
        inputs = cases.make_exact(case, dtype)
        result, truth = _backward(inputs, layout), _truth(inputs)
        for name in ("dx", "dgamma", "dbeta"):
            expected = tolerance.round_to(getattr(truth, name), dtype)
            assert np.array_equal(to_float64(getattr(result, name)), expected), (case.name, name)


@pytest.mark.parametrize("dtype", LOW_DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_printed_formula_keeps_derived_bounds(isa, dtype, family):
    for case in SMALL:
        inputs = cases.grouped(cases.make(case, dtype, family=family))
        arguments = (inputs.x, inputs.dy, inputs.gamma, inputs.mean, inputs.rstd)
        truth = reference.group_normalization_grad(*arguments)
        result = to_float64(groupnorm.group_normalization_grad(*arguments))
        inside = np.isfinite(tolerance.round_to(truth, dtype))  # float16 ends at 65504
        error = np.abs(result - truth)[inside]
        assert (error <= tolerance.printed_bound(*arguments, truth)[inside]).all(), case.name
        assert (np.abs(result[~inside]) >= 65504).all()


@pytest.mark.parametrize("family", ["centred", "offset_10000", "dy_offset"])
def test_float32_printed_formula_keeps_the_contract(isa, family):
    for case in [*NONZERO, LONG]:
        inputs = cases.grouped(cases.make(case, FLOAT32, family=family))
        arguments = (inputs.x, inputs.dy, inputs.gamma, inputs.mean, inputs.rstd)
        truth = reference.group_normalization_grad(*arguments)
        assert _relative(groupnorm.group_normalization_grad(*arguments), truth) <= tolerance.CONTRACT["dx"]


@pytest.mark.parametrize("dtype", LOW_DTYPES, ids=str)
def test_printed_formula_on_exact_data(isa, dtype):
    inputs = cases.grouped(cases.make_exact(Case("exact", (3, 8, 4, 16), 2), dtype))
    arguments = (inputs.x, inputs.dy, inputs.gamma, inputs.mean, inputs.rstd)
    expected = tolerance.round_to(reference.group_normalization_grad(*arguments), dtype)
    assert np.array_equal(to_float64(groupnorm.group_normalization_grad(*arguments)), expected)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", ["centred", "offset_100", "offset_10000"])
def test_forward_matches_the_reference(isa, dtype, family, layout):
    for case in NONZERO:
        x, gamma, beta = _forward_inputs(case, dtype, family)
        given = channels_last(x) if layout == "channels_last" and x.ndim > 2 else x
        result = groupnorm.group_norm(given, case.num_groups, gamma, beta)
        truth = reference.group_norm(x, case.num_groups, gamma, beta)
        u = tolerance.unit_roundoff(result.mean.dtype)
        size = np.abs(to_float64(x)).max()
        # Statistics: the sums of a block carry up to ROUNDINGS roundings, those after it none that count.
        assert np.abs(result.mean - truth.mean).max() <= 2 * tolerance.ROUNDINGS * u * size
        assert (np.abs(result.rstd - truth.rstd) <= 2 * tolerance.ROUNDINGS * u * truth.rstd).all()
        # y: five roundings on gamma * xhat, the error of rstd, and its own rounding.
        largest = np.abs(truth.y).max() + 2
        bound = (5 + 2 * tolerance.ROUNDINGS) * u * largest + tolerance.unit_roundoff(dtype) * np.abs(truth.y)
        assert (np.abs(to_float64(result.y) - truth.y) <= bound).all()


def _forward_inputs(case, dtype, family):
    inputs = cases.make(case, dtype, family=family)
    beta = cases.uniform((case.shape[1],), 9).astype(inputs.gamma.dtype)
    return inputs.x, inputs.gamma, beta


def test_forward_statistics_survive_a_large_mean(isa):
    x = cases.make(Case("offset", (2, 16, 32, 32), 4), FLOAT32, family="offset_10000").x
    truth = reference.group_norm(x, 4)
    for given in (x, channels_last(x)):
        result = groupnorm.group_norm(given, 4)
        assert _relative(result.rstd, truth.rstd) <= 2e-7
        assert _relative(result.mean, truth.mean) <= 1e-7
        assert _relative(result.y, truth.y) <= 3e-7


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_recenter_restores_the_gradient_of_rounded_statistics(isa, dtype):
    case = Case("rounded", (4, 16, 24, 24), 4)
    inputs = cases.make(case, dtype, family="dy_offset", parameter_dtype=dtype)
    inputs = inputs._replace(x=(to_float64(inputs.x) + 2).astype(dtype))
    mean = reference.group_norm(inputs.x, 4).mean
    inputs = inputs._replace(mean=mean.astype(dtype))
    exact = reference.group_norm_backward(inputs.dy, inputs.x, mean, inputs.rstd, inputs.gamma)
    given = _relative(_backward(inputs, "contiguous").dgamma, exact.dgamma)
    result = _backward(inputs, "contiguous", recenter=True)
    recentred = _relative(result.dgamma, exact.dgamma)
    own_rounding = 2 * tolerance.unit_roundoff(dtype)
    assert recentred <= own_rounding < given / 4
    truth = _truth(inputs, recenter=True)
    for name in ("dx", "dgamma", "dbeta"):
        error = np.abs(to_float64(getattr(result, name)) - getattr(truth, name))
        bound = (
            tolerance.unit_roundoff(dtype) * np.abs(getattr(truth, name)) + 1e-6 * np.abs(getattr(truth, name)).max()
        )
        assert (error <= bound).all(), name

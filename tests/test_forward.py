"""Operator C where it is special: constant groups, one element, eps, in step with the backward."""

from __future__ import annotations

import numpy as np
import pytest

import groupnorm
from conftest import DTYPES
from groupnorm import cases, reference
from groupnorm.cases import Case
from groupnorm.reference import to_float64


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 4, 5, 5), (3, 4, 1), (2, 4)])
def test_constant_groups_give_beta(isa, dtype, shape):
    x = np.full(shape, 3.0, dtype)
    beta = np.arange(4).astype(dtype)
    y, mean, rstd = groupnorm.group_norm(x, 4, None, beta)
    assert (y.reshape(*shape[:2], -1) == beta[:, None]).all()
    assert (mean == 3).all()
    np.testing.assert_allclose(rstd, 1 / np.sqrt(1e-5), rtol=1e-7)


def test_defaults_and_dtypes_of_parameters():
    inputs = cases.make(Case("case", (2, 8, 6, 6), 2), np.float16)
    y, mean, rstd = groupnorm.group_norm(inputs.x, 2)
    assert (y.dtype, mean.dtype, rstd.dtype) == (np.float16, np.float32, np.float32)
    beta = np.zeros(8, np.float16)
    mixed = groupnorm.group_norm(inputs.x, 2, inputs.gamma, beta)
    truth = reference.group_norm(inputs.x, 2, inputs.gamma, beta)
    assert np.abs(to_float64(mixed.y) - truth.y).max() <= 2**-11 * np.abs(truth.y).max() * 1.01


@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-3, 2.0])
def test_eps(eps):
    x = cases.make(Case("case", (2, 8, 6, 6), 2), np.float32).x
    result, truth = groupnorm.group_norm(x, 2, eps=eps), reference.group_norm(x, 2, eps=eps)
    np.testing.assert_allclose(result.rstd, truth.rstd, rtol=2e-7)
    np.testing.assert_allclose(result.y, truth.y, atol=1e-6)


def test_nan_and_infinity_stay_in_their_group(isa):
    x = cases.make(Case("case", (2, 8, 6, 6), 4), np.float32).x.copy()
    clean = groupnorm.group_norm(x, 4)
    for special in (np.nan, np.inf, -np.inf):
        x[1, 3, 2, 2] = special
        result = groupnorm.group_norm(x, 4)
        assert np.isnan(result.y[1, 2:4]).all()
        assert np.isnan(result.rstd[1, 1])
        others = np.ones((2, 8), bool)
        others[1, 2:4] = False
        assert np.array_equal(result.y[others], clean.y[others])


def spread(array, num_groups):
    """Groups, and the elements by which the kernels guess their mean: 16, evenly spaced from the first to the last."""
    grouped = array.reshape(array.shape[0], num_groups, -1)
    last = grouped.shape[2] - 1
    return grouped, [last * i // 15 for i in range(16)]


@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
@pytest.mark.parametrize(
    ("elsewhere", "deviation", "sampled"),
    [(1e6, 1, 0), (1, 1e-3, -3e4), (1, 1e-3, 1), (-5, 0.1, 3e5), (0, 1, 1e-30), (2e18, 1e15, 0), (7, 0, 8)],
)
def test_a_sample_that_misleads(isa, layout, elsewhere, deviation, sampled):
    """The sample has none of what the rest of a group has: its mean may be a million deviations away."""
    x = (elsewhere + deviation * (cases.uniform((2, 12, 20, 21), 1) - 0.5)).astype(np.float32)
    grouped, sample = spread(x, 3)
    grouped[:, :, sample] = sampled
    truth = reference.group_norm(x, 3)
    moved = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1) if layout == "channels-last" else x
    result = groupnorm.group_norm(moved, 3)
    np.testing.assert_allclose(result.rstd, truth.rstd, rtol=3e-7)
    np.testing.assert_allclose(result.mean, truth.mean, rtol=2e-7)
    assert np.abs(result.y - truth.y).max() <= 3e-7 * np.abs(truth.y).max()


@pytest.mark.parametrize(("dtype", "large"), [(np.float32, 3e38), (np.float32, 1e20), (np.float64, 1e200)])
@pytest.mark.parametrize("misled", [False, True])
def test_squares_that_overflow_give_beta(isa, dtype, large, misled):
    """The mean is right and rstd is 0, also where the distance from the sampled mean overflows itself."""
    x = np.zeros((2, 6, 20, 21), dtype)
    x[1] = cases.uniform(x.shape[1:], 1)
    grouped, sample = spread(x, 3)
    grouped[0, 1, [sample[0], sample[3], 7, 700]] = large, -large, large / 2, -large / 4
    if misled:
        grouped[0, 1, sample[1:8:2]] = large / 16
    beta = np.arange(6).astype(dtype)
    result = groupnorm.group_norm(x, 3, None, beta)
    assert result.rstd[0, 1] == 0
    assert (result.y[0, 2:4] == beta[2:4, None, None]).all()
    mean = grouped[0, 1].mean(dtype=np.longdouble)
    # Four large terms, each on a lane of eight roundings.
    np.testing.assert_allclose(result.mean[0, 1], mean, rtol=0, atol=4 * 8 * 2**-24 * large / 840)
    assert np.isfinite(result.y).all()


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_a_sample_that_is_not_finite(isa, special):
    x = cases.make(Case("case", (2, 8, 6, 6), 4), np.float32).x.copy()
    clean = groupnorm.group_norm(x, 4)
    grouped, sample = spread(x, 4)
    grouped[1, 2, sample[5]] = special
    result = groupnorm.group_norm(x, 4)
    assert np.isnan(result.y[1, 4:6]).all()
    assert np.isnan(result.rstd[1, 2])
    assert np.array_equal(result.mean[1, 2], np.float32(special), equal_nan=True)
    assert np.array_equal(np.delete(result.y[1], [4, 5], 0), np.delete(clean.y[1], [4, 5], 0))
    assert np.array_equal(result.y[0], clean.y[0])


def test_statistics_feed_the_backward(isa):
    case = Case("case", (2, 12, 9, 9), 3)
    inputs = cases.make(case, np.float32)
    _, mean, rstd = groupnorm.group_norm(inputs.x, 3, inputs.gamma)
    dx = groupnorm.group_norm_backward(inputs.dy, inputs.x, mean, rstd, inputs.gamma).dx
    truth = reference.group_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma).dx
    # Two statistics of one rounding each: the gradient moves by a few units of float32.
    assert np.abs(dx - truth).max() <= 1e-6 * np.abs(truth).max()
    grouped = dx.reshape(2, 3, -1).astype(np.float64)
    assert np.abs(grouped.sum(2)).max() <= 1e-4  # dx sums to 0 over a group

"""Public bug reports about Group Normalization's gradient elsewhere, and their kinds, have the right values here.

The numbers O1 to O25 and the fingerprints are those of the shared folder's list of cases; where that folder
lies beside the checkout, its own reference and its own table are compared too.
"""

from __future__ import annotations

import importlib.util
import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import groupnorm
from conftest import BFLOAT16, DTYPES, bits, channels_last
from groupnorm import cases, reference, tolerance
from groupnorm.cases import Case, uniform
from groupnorm.reference import to_float64

u = uniform


def _inputs(x, dy, gamma, num_groups, dtype=np.float32):
    x = x.astype(dtype)
    stats = np.float64 if dtype == np.float64 else np.float32
    _, mean, rstd = reference.group_norm(x, num_groups)
    gamma = None if gamma is None else gamma.astype(stats)
    return dy.astype(dtype), x, mean.astype(stats), rstd.astype(stats), gamma


def _error(result, truth):
    scale = np.abs(truth).max()
    return np.abs(to_float64(result) - truth).max() / (scale if scale else 1.0)


def _check(arguments, dx, dgamma, dbeta=5e-7):
    result = groupnorm.group_norm_backward(*arguments)
    truth = reference.group_norm_backward(*arguments)
    assert _error(result.dx, truth.dx) <= dx
    assert _error(result.dgamma, truth.dgamma) <= dgamma
    assert _error(result.dbeta, truth.dbeta) <= dbeta
    return result


def _fingerprint(array):
    flat = to_float64(array).ravel()
    weights = np.cos(np.arange(flat.size, dtype=np.float64))
    return [*flat[:3], flat[-1], np.abs(flat).max(), float(flat @ weights)]


# First three, last and largest value of (dx, dgamma, dbeta).
FINGERPRINTS = {
    "O1": (
        [-2.14902639, -1.08295676, -4.75057267, -2.87522796, 4.95358002],
        [56.0827462, 158.176945, -37.4153362, -81.5422357, 158.176945],
        [34.7825403, 62.706713, -39.5350821, -296.88544, 642.9325],
    ),
    "O2": (
        [0.282349367, 0.743827617, 0.560224288, -0.691333184, 3.06114783],
        [-3.82003997, 3.38967322, -2.77831252, -7.40876214, 7.40876214],
        [0.0443661213, -5.47985482, 1.71816373, -1.13681066, 7.3283217],
    ),
    "O2b": (
        [-0.410225648, -0.371293065, -0.465633344, -0.9403034, 1.1349282],
        [-20.2042774, -1.04730444, 10.2316009, -9.83896952, 20.2042774],
        [72.0, 72.0, 72.0, 72.0, 72.0],
    ),
    "O3": (
        [0.307060643, 0.0818546172, 0.39075396, -0.411839712, 2.61659614],
        [-20.524418, -11.7123668, 29.4807283, 1.19104341, 56.6311834],
        [1028.19937, 1033.47116, 1033.17019, 1029.0554, 1053.39976],
    ),
    "O7": (
        [-0.557342557, -0.303038062, -0.880447938, -0.696795993, 2.52257743],
        [3.21666464, 7.25156806, 4.40629701, -4.0887617, 9.27276023],
        [-8.65524971, 3.68373239, -3.29677045, -3.59315109, 8.65524971],
    ),
    "O13": (
        [-0.361699755, 0.467301504, 0.464320784, 0.0954778979, 1.66103981],
        [66.361501, 20.230939, -8.96639373, 162.037455, 265.20312],
        [6175.15613, 6123.80834, 6206.30104, 6138.02942, 6206.30104],
    ),
    "O24": (
        [-0.238925556, 0.92207564, 0.197575252, -0.776937053, 12.2463937],
        [-3.43656417, -9.15106933, 4.82827489, -4.83308958, 69.9935293],
        [-12.0333573, 46.3506682, 12.1277094, 18.5708252, 47.1127797],
    ),
    "O25": (
        [296168674000000.0, -959683175000000.0, 292098392000000.0, 615003094000000.0, 1074432010000000.0],
        [0.0, 0.0, 0.0, 0.0, 0.0],
        [-0.0730916262, -0.756119132, 2.33935797, 1.09907341, 2.33935797],
    ),
}


def _has_fingerprint(result, name, dx=1e-6):
    for array, expected, bound in zip(result, FINGERPRINTS[name], (dx, 1e-6, 1e-6), strict=True):
        largest = max(np.abs(expected).max(), 1e-300)
        found = np.array(_fingerprint(array)[:5])
        assert np.abs(found - expected).max() <= (bound + 5e-9) * largest, name


def _case(name):
    if name == "O1":
        shape = (1, 8, 32, 64, 64)
        return _inputs(0.5 + 0.5 * u(shape, 201), u(shape, 202), 1 + 0.5 * u((8,), 203), 2)
    if name == "O3":
        shape = (8, 64, 16, 16)
        return _inputs(0.5 + 0.5 * u(shape, 211), 0.5 + 0.5 * u(shape, 212), 0.5 + 0.5 * u((64,), 213), 16, BFLOAT16)
    if name == "O13":
        shape = (2, 32, 32, 32)
        return _inputs(1e4 + 2 * u(shape, 11), 3 + u(shape, 12), 1 + 0.25 * u((32,), 13), 8)
    if name == "O24":
        shape = (600, 32, 1, 3)
        return _inputs(u(shape, 301), u(shape, 302), 1 + 0.5 * u((32,), 303), 16)
    shape, x, dy, gamma = {"O2": ((2, 8, 4, 6), 81, 82, 83), "O7": ((2, 8, 5, 7), 1, 2, 3)}[name]
    return _inputs(u(shape, x), u(shape, dy), 1 + 0.5 * u((8,), gamma), 2)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize(
    ("name", "dx", "dgamma"), [("O1", 3e-7, 5e-7), ("O13", 3e-7, 5e-7), ("O24", 3e-7, 5e-7), ("O3", 4e-3, 5e-7)]
)
def test_o1_o3_o13_o24_accuracy(isa, name, dx, dgamma, layout):
    dy, x, *rest = _case(name)
    move = channels_last if layout == "channels_last" else np.ascontiguousarray
    result = _check((move(dy), move(x), *rest), dx, dgamma)
    _has_fingerprint(result, name, dx)


def test_o2_any_pair_of_layouts(isa):
    dy, x, *rest = _case("O2")
    wide = np.zeros((2, 8, 4, 12), np.float32)
    wide[..., ::2] = x
    for x_, dy_ in itertools.product((x, channels_last(x), wide[..., ::2]), (dy, channels_last(dy))):
        result = groupnorm.group_norm_backward(dy_, x_, *rest)
        _has_fingerprint(result, "O2")
        assert result.dx.strides == np.empty_like(x_).strides
    expanded = np.broadcast_to(np.float32(1.5), x.shape)
    _has_fingerprint(groupnorm.group_norm_backward(expanded, channels_last(x), *rest), "O2b")


def test_o4_ambiguous_strides(isa):
    x, dy = u((8, 12, 1, 1), 71).astype(np.float32), u((8, 12, 1, 1), 72).astype(np.float32)
    strided = np.lib.stride_tricks.as_strided
    x_ = strided(x, strides=(48, 4, 8 * 48 * 4, 4))
    dy_ = strided(dy, strides=(48, 4, 48, 48))
    _, mean, rstd = groupnorm.group_norm(x, 3)
    expected = groupnorm.group_norm_backward(dy, x, mean, rstd)
    result = groupnorm.group_norm_backward(dy_, x_, mean, rstd)
    assert all(bits(a) == bits(b) for a, b in zip(result, expected, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mask", [(False, True, True), (True, False, False), (False, False, True)])
def test_o7_o8_masks(isa, mask, dtype):
    for move, case in itertools.product(
        (np.ascontiguousarray, channels_last), (Case("o7", (2, 8, 5, 7), 2), Case("5d", (2, 8, 3, 2, 2), 4))
    ):
        inputs = cases.make(case, dtype)
        arguments = (move(inputs.dy), move(inputs.x), inputs.mean, inputs.rstd, inputs.gamma)
        whole = groupnorm.group_norm_backward(*arguments)
        result = groupnorm.group_norm_backward(*arguments, output_mask=mask)
        for wanted, array, expected in zip(mask, result, whole, strict=True):
            assert bits(array) == bits(expected) if wanted else array is None
    _has_fingerprint(groupnorm.group_norm_backward(*_case("O7")), "O7")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_o10_one_element_per_group(isa, dtype):
    x, dy = u((3, 8, 1, 1), 221).astype(dtype), u((3, 8, 1, 1), 222).astype(dtype)
    for gamma in (None, (1 + 0.5 * u((8,), 223)).astype(dtype)):
        mean = x.reshape(3, 8)
        rstd = np.full((3, 8), 1 / np.sqrt(1e-5), dtype)
        result = groupnorm.group_norm_backward(dy, x, mean, rstd, gamma)
        assert (result.dx == 0).all()
        assert (result.dgamma == 0).all()
        np.testing.assert_array_equal(to_float64(result.dbeta), to_float64(to_float64(dy).sum((0, 2, 3)).astype(dtype)))


def test_o11_linearity(isa):
    shape = (2, 8, 16, 16)
    dy, *rest = _inputs(u(shape, 251), u(shape, 252), 1 + 0.5 * u((8,), 253), 2)
    one = groupnorm.group_norm_backward(dy, *rest)
    scaled = groupnorm.group_norm_backward(dy * np.float32(2.0**40), *rest)
    assert all(bits(s) == bits(o * np.float32(2.0**40)) for s, o in zip(scaled, one, strict=True))
    tripled = groupnorm.group_norm_backward(dy * np.float32(3), *rest)
    assert all(_error(t, 3 * to_float64(o)) <= 2e-7 for t, o in zip(tripled, one, strict=True))
    other = u(shape, 254).astype(np.float32)
    two = groupnorm.group_norm_backward(other, *rest)
    both = groupnorm.group_norm_backward(dy + other, *rest)
    assert all(_error(b, to_float64(p) + to_float64(q)) <= 3e-7 for b, p, q in zip(both, one, two, strict=True))


def test_o14_float16_range(isa):
    shape = (2, 8, 16, 16)
    x = (62500 + 2500 * u(shape, 261)).astype(np.float16)
    dy = u(shape, 262).astype(np.float16)
    y, mean, rstd = groupnorm.group_norm(x, 2)
    assert np.isfinite(y).all()
    result = _check((dy, x, mean, rstd, None), 1e-3, 5e-7)
    assert all(np.isfinite(array).all() for array in result)
    eights = np.full((4, 8, 64, 64), 8, np.float16)
    stats = np.ones((4, 2), np.float32)
    in_float32 = groupnorm.group_norm_backward(eights, eights, stats, stats, np.ones(8, np.float32))
    assert (in_float32.dbeta == 131072).all()
    in_float16 = groupnorm.group_norm_backward(eights, eights, stats, stats, np.ones(8, np.float16))
    assert np.isposinf(in_float16.dbeta).all()


def test_o15_dx_keeps_the_layout_of_x():
    for shape in ((2, 8, 4, 6), (2, 8, 3, 4, 6)):
        for move in (np.ascontiguousarray, channels_last):
            x = move(u(shape, 1).astype(np.float32))
            stats = np.ones((2, 2), np.float32)
            assert groupnorm.group_norm_backward(np.ascontiguousarray(x), x, stats, stats).dx.strides == x.strides


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_o16_mixed_dtypes(isa, dtype):
    shape = (4, 16, 9, 9)
    dy, x, mean, rstd, gamma = _inputs(u(shape, 1), u(shape, 2), 1 + 0.5 * u((16,), 3), 4, dtype)
    truth = reference.group_norm_backward(dy, x, mean, rstd, gamma)
    result = groupnorm.group_norm_backward(dy, x, mean, rstd, gamma)
    assert (result.dx.dtype, result.dgamma.dtype, result.dbeta.dtype) == (dtype, np.float32, np.float32)
    assert _error(result.dgamma, truth.dgamma) <= 1e-6
    assert _error(result.dbeta, truth.dbeta) <= 1e-6
    without = groupnorm.group_norm_backward(dy, x, mean, rstd)
    assert (without.dx.dtype, without.dgamma.dtype) == (dtype, np.float32)
    low = groupnorm.group_norm_backward(dy, x, mean, rstd, gamma.astype(dtype))
    assert low.dgamma.dtype == dtype


def test_o21_gamma_per_group_is_refused():
    with pytest.raises(ValueError, match=re.escape("gamma: shape (2,); accepted: (8,), one element per channel")):
        groupnorm.group_norm_backward(*_case("O7")[:4], np.ones(2, np.float32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_o22_rank_2_is_rank_3_with_one_position(isa, dtype):
    inputs = cases.make(Case("rank2", (20, 6), 3), dtype)
    flat = groupnorm.group_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)
    deep = groupnorm.group_norm_backward(
        inputs.dy[..., None], inputs.x[..., None], inputs.mean, inputs.rstd, inputs.gamma
    )
    assert flat.dx.shape == (20, 6)
    assert all(bits(a) == bits(b) for a, b in zip(flat, deep, strict=True))


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_o25_huge_rstd(isa, layout):
    x = np.full((1, 4, 2, 2), 3, np.float32)
    dy = u((1, 4, 2, 2), 112).astype(np.float32)
    move = channels_last if layout == "channels_last" else np.ascontiguousarray
    mean, rstd = np.full((1, 1), 3, np.float32), np.full((1, 1), 1e15, np.float32)
    result = _check((move(dy), move(x), mean, rstd, np.ones(4, np.float32)), 3e-7, 0.0)
    assert np.isfinite(result.dx).all()
    assert (result.dgamma == 0).all()
    _has_fingerprint(result, "O25")


@pytest.mark.parametrize("exponent", [-37, -15, 13, 15, 37])
def test_o25_kind_extreme_rstd(isa, exponent):
    """Neither rstd ** 2 nor rstd ** 3 is formed: scales of x come out as scales of dx."""
    shape = (2, 8, 6, 6)
    scale = np.float32(10.0**-exponent)
    x = (u(shape, 5) * scale).astype(np.float32)
    dy = u(shape, 6).astype(np.float32)
    _, mean, rstd = reference.group_norm(x, 2, eps=0.0)
    _check((dy, x, mean.astype(np.float32), rstd.astype(np.float32), None), 3e-7, 5e-7)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_kinds_of_the_reports(data):
    """Shapes, layouts, dtypes and offsets drawn at random keep the derived bounds, dx bit for bit by sample."""
    d, groups = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 6))
    spatial = data.draw(st.lists(st.integers(1, 20), max_size=3))
    case = Case("drawn", (data.draw(st.integers(1, 5)), d * groups, *spatial), groups)
    dtype = data.draw(st.sampled_from(DTYPES))
    family = data.draw(st.sampled_from(sorted(cases.FAMILIES)))
    inputs = cases.make(case, dtype, family=family, seed=data.draw(st.integers(0, 2**32)))
    moves = (np.ascontiguousarray, channels_last if len(case.shape) > 2 else np.asfortranarray, np.asfortranarray)
    move_x, move_dy = data.draw(st.sampled_from(moves)), data.draw(st.sampled_from(moves))
    dy, x, *rest = inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma
    threads = data.draw(st.integers(1, 4))
    result = groupnorm.group_norm_backward(move_dy(dy), move_x(x), *rest, num_threads=threads)
    truth = reference.group_norm_backward(dy, x, *rest)
    bounds = tolerance.backward_bounds(dy, x, *rest, truth)
    for name in ("dx", "dgamma", "dbeta"):
        error = np.abs(to_float64(getattr(result, name)) - getattr(truth, name))
        assert (error <= getattr(bounds, name)).all(), name
    n = data.draw(st.integers(0, case.shape[0] - 1))
    one = slice(n, n + 1)
    alone = groupnorm.group_norm_backward(dy[one], x[one], rest[0][one], rest[1][one], rest[2])
    assert bits(alone.dx) == bits(result.dx[one])


def test_against_the_shared_reference(shared):
    spec = importlib.util.spec_from_file_location("case_lib", shared / "cases" / "case_lib.py")
    case_lib = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(case_lib)
    assert np.array_equal(case_lib.u((3, 5), 7), u((3, 5), 7))
    for name in ("O1", "O2", "O3", "O7", "O13", "O24"):
        dy, x, mean, rstd, gamma = _case(name)
        own = reference.group_norm_backward(dy, x, mean, rstd, gamma)
        theirs = case_lib.ref(x, dy, gamma, mean, rstd, mean.shape[1])
        for a, b in zip(own, theirs, strict=True):
            assert np.abs(a - b).max() <= 1e-12 * np.abs(b).max(), name
        inputs = cases.grouped(cases.Inputs(x.astype(np.float32), dy.astype(np.float32), gamma, mean, rstd))
        printed = reference.group_normalization_grad(
            *(getattr(inputs, n) for n in ("x", "dy", "gamma", "mean", "rstd"))
        )
        theirs = case_lib.ref(x, dy, gamma, mean, rstd, mean.shape[1], formula="printed")[0]
        assert np.abs(printed.reshape(x.shape) - theirs).max() <= 1e-12 * np.abs(theirs).max(), name

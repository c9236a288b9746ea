"""The same bits whatever computes them: SIMD level x threads x batch x layout x mask."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

import groupnorm
import hashes
from conftest import DTYPES, ISA_LEVELS, LOW_DTYPES, bits, channels_last
from groupnorm import _core, cases
from groupnorm.cases import SMALL, Case

# Large enough that threads share the work, that a group is split, and that a channel has several chunks.
SHARED_OUT = [
    Case("groups_over_threads", (4, 32, 24, 24), 8),
    Case("one_group", (1, 6, 100, 101), 1),
    Case("few_wide_groups", (2, 40, 65, 64), 2),
    Case("rows_of_the_batch", (700, 64), 8),
    Case("odd_channels", (3, 37, 40, 41), 37),
]


@pytest.fixture(autouse=True)
def _level_kept():
    yield
    _core.select_isa(None)


def _variants(x):
    yield "contiguous", lambda a: a
    if x.ndim > 2:
        yield "channels_last", channels_last


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [*SMALL, *SHARED_OUT], ids=lambda case: case.name)
def test_backward(case, dtype):
    x, dy, gamma, mean, rstd = cases.make(case, dtype, family="dy_offset")
    expected = [bits(array) for array in groupnorm.group_norm_backward(dy, x, mean, rstd, gamma, num_threads=1)]
    masks = list(itertools.product((True, False), repeat=3))
    for level, threads, (_, move) in itertools.product(ISA_LEVELS, (1, 2, 3, 7), _variants(x)):
        assert _core.select_isa(level)
        moved = move(dy), move(x), mean, rstd, gamma
        for mask in masks:
            result = groupnorm.group_norm_backward(*moved, output_mask=mask, num_threads=threads)
            for wanted, array, whole in zip(mask, result, expected, strict=True):
                assert (array is not None) == wanted
                assert array is None or bits(array) == whole, (level, threads, mask)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [1, 7, 15, 16, 17, 31, 33, 49, 65, 127, 129, 255, 257])
def test_rows_of_any_length_anywhere(length, dtype):
    """Short channels are written as one row, in whole vectors: the bits of the other layout, and no other bytes."""
    x, dy, gamma, mean, rstd = cases.make(Case("rows", (2, 6, length), 2), dtype)
    expected = bits(groupnorm.group_norm_backward(channels_last(dy), channels_last(x), mean, rstd, gamma).dx)
    for level, offset in itertools.product(ISA_LEVELS, (0, 1, 3, 7)):
        assert _core.select_isa(level)
        memory = np.full(x.size + 32, 5, x.dtype)
        dx = memory[offset : offset + x.size].reshape(x.shape)
        for source in (x, dx):  # beside x, and in its place
            dx[...] = x
            groupnorm.group_norm_backward(
                dy, source, mean, rstd, gamma, output_mask=(True, False, False), out=(dx, None, None)
            )
            assert bits(dx) == expected, (level, offset, source is dx)
        dx[...] = 5
        assert (memory == 5).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("move", [np.asarray, channels_last], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("sample", [(64, 7, 7), (16, 14, 14), (4, 53, 53), (3, 700, 1501)], ids=str)
def test_results_that_exceed_the_caches(dtype, move, sample):
    """Past them in whole lines, wherever rows begin: the bits of one sample at a time, and no other bytes."""
    n = -(-9_000_000 // (np.prod(sample) * np.dtype(dtype).itemsize))
    x, dy, gamma, mean, rstd = cases.make(Case("large", (n, *sample), 1), dtype)
    x, dy = move(x), move(dy)
    alone = [
        groupnorm.group_norm_backward(dy[i : i + 1], x[i : i + 1], mean[i : i + 1], rstd[i : i + 1], gamma).dx
        for i in range(n)
    ]
    guard = 64
    for level, offset in itertools.product(ISA_LEVELS, (0, 5)):
        assert _core.select_isa(level)
        memory = np.full(x.size + 2 * guard, 7, x.dtype)
        inside = slice(guard + offset, guard + offset + x.size)
        order = x.shape if move is np.asarray else np.moveaxis(x, 1, -1).shape
        dx = memory[inside].reshape(order)
        dx = dx if move is np.asarray else np.moveaxis(dx, -1, 1)
        grads = groupnorm.group_norm_backward(
            dy, x, mean, rstd, gamma, output_mask=(True, False, False), out=(dx, None, None), num_threads=2
        )
        assert grads.dx is dx
        assert bits(dx) == bits(np.concatenate(alone)), (level, offset)
        memory[inside] = 7
        assert (memory == 7).all()


@pytest.mark.parametrize("recenter", [False, True])
def test_backward_options(recenter):
    for case in SHARED_OUT:
        x, dy, _, mean, rstd = cases.make(case, np.float32)
        found = set()
        for level, threads in itertools.product(ISA_LEVELS, (1, 2, 3, 7)):
            assert _core.select_isa(level)
            result = groupnorm.group_norm_backward(dy, x, mean, rstd, recenter=recenter, num_threads=threads)
            found.add(tuple(bits(array) for array in result))
        assert len(found) == 1, case.name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_dx_of_a_sample_does_not_depend_on_its_batch(dtype, layout):
    for case in [Case("batch", (8, 12, 30, 31), 3), Case("short", (40, 64, 3), 8), Case("rank2", (9, 48), 4)]:
        x, dy, gamma, mean, rstd = cases.make(case, dtype)
        move = channels_last if layout == "channels_last" and x.ndim > 2 else lambda a: a
        whole = groupnorm.group_norm_backward(move(dy), move(x), mean, rstd, gamma, num_threads=2).dx
        for first, last in [(0, 1), (2, 3), (1, 6), (case.shape[0] - 1, case.shape[0])]:
            part = slice(first, last)
            for threads in (1, 2, 3):
                dx = groupnorm.group_norm_backward(
                    move(dy[part]), move(x[part]), mean[part], rstd[part], gamma, num_threads=threads
                ).dx
                assert bits(dx) == bits(whole[part]), (case.name, part, threads)


@pytest.mark.parametrize("dtype", LOW_DTYPES, ids=str)
def test_printed_formula(dtype):
    for case in [*SMALL, *SHARED_OUT]:
        inputs = cases.grouped(cases.make(case, dtype))
        found = set()
        for level, threads in itertools.product(ISA_LEVELS, (1, 2, 3, 7)):
            assert _core.select_isa(level)
            dx = groupnorm.group_normalization_grad(
                inputs.x, inputs.dy, inputs.gamma, inputs.mean, inputs.rstd, num_threads=threads
            )
            found.add(bits(dx))
        assert len(found) == 1, case.name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_forward(dtype):
    for case in [*SMALL, *SHARED_OUT]:
        x, _, gamma, _, _ = cases.make(case, dtype)
        found = set()
        for level, threads, (_, move) in itertools.product(ISA_LEVELS, (1, 2, 3, 7), _variants(x)):
            assert _core.select_isa(level)
            result = groupnorm.group_norm(move(x), case.num_groups, gamma, num_threads=threads)
            found.add(tuple(bits(array) for array in result))
        assert len(found) == 1, case.name


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_and_infinity_have_the_same_bits_and_stay_in_their_group(dtype, special):
    case = Case("planted", (3, 20, 5, 7), 5)
    for operand in ("x", "dy", "mean", "rstd"):
        inputs = cases.make(case, dtype)
        planted = getattr(inputs, operand).copy()
        planted[(1, 2) if operand in ("mean", "rstd") else (1, 9, 2, 3)] = special  # channel 9: group 2
        inputs = inputs._replace(**{operand: planted})
        found = set()
        for level, (_, move) in itertools.product(ISA_LEVELS, _variants(inputs.x)):
            assert _core.select_isa(level)
            result = groupnorm.group_norm_backward(
                move(inputs.dy), move(inputs.x), inputs.mean, inputs.rstd, inputs.gamma
            )
            found.add(tuple(bits(array) for array in result))
        assert len(found) == 1, operand
        clean = groupnorm.group_norm_backward(*(getattr(cases.make(case, dtype), n) for n in _ORDER))
        affected = np.zeros(case.shape, bool)
        affected[1, 8:12] = True
        assert bits(result.dx[~affected]) == bits(clean.dx[~affected])
        assert not np.isfinite(result.dx[1, 8:12].astype(np.float64)).all()
        for name in ("dgamma", "dbeta"):
            others = np.r_[0:8, 12:20]
            assert bits(getattr(result, name)[others]) == bits(getattr(clean, name)[others])


_ORDER = ("dy", "x", "mean", "rstd", "gamma")


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((1, 512, 64), 1), ((1, 512, 4, 16), 512), ((1, 2, 144), 2), ((1, 2, 144), 1), ((3, 6, 16), 3),
        ((2, 48, 1100), 48), ((2, 40, 1), 8), ((2, 40), 40),
    ],
)  # fmt: skip
def test_sums_that_underflow_are_plus_zero(shape, groups, sign):
    """Products below the smallest number leave a zero, which has their sign or not, as the sum was cut."""
    x = np.full(shape, -1e-10 * sign, np.float32)
    dy = np.full(shape, 1e-45, np.float32)
    mean = np.full((shape[0], groups), sign, np.float32)
    for rstd in (mean / 4 * sign, mean * 2.0**-10 * sign):
        found = set()
        for level, threads, layout in itertools.product(ISA_LEVELS, (1, 2, 3), (np.asarray, channels_last)):
            assert _core.select_isa(level)
            grads = groupnorm.group_norm_backward(layout(dy), layout(x), mean, rstd, num_threads=threads)
            found.add(tuple(bits(grad) for grad in grads))
        _core.select_isa(None)
        assert len(found) == 1


def test_stored_hashes():
    """What another machine or compiler computed; tests/hashes.py writes the file."""
    stored = json.loads(hashes.FILE.read_text())
    for level, threads, move in itertools.product(ISA_LEVELS, (1, 3), (np.ascontiguousarray, channels_last)):
        assert _core.select_isa(level)
        found = hashes.current(DTYPES, move, num_threads=threads)
        assert found.keys() == stored.keys()
        assert [name for name in found if found[name] != stored[name]] == []

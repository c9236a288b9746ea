"""What may come in and what comes out: layouts, views, in-place results, other libraries' arrays."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import groupnorm
from conftest import BFLOAT16, DTYPES, bits, channels_last
from groupnorm import cases
from groupnorm.cases import Case

CASE = Case("case", (2, 8, 4, 6), 2)
ORDER = ("dy", "x", "mean", "rstd", "gamma")


def _call(inputs, **options):
    return groupnorm.group_norm_backward(*(getattr(inputs, name) for name in ORDER), **options)


def _same(result, expected):
    return all(bits(a) == bits(b) for a, b in zip(result, expected, strict=True))


def _views(array):
    """The same values in every kind of memory."""
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    shifted = np.zeros(array.nbytes + 1, np.uint8)
    unaligned = shifted[1:].view(array.dtype).reshape(array.shape)
    unaligned[...] = array
    return {
        "contiguous": np.ascontiguousarray(array),
        "channels_last": channels_last(array),
        "slice": wide[..., ::2],
        "slice of channels_last": channels_last(wide)[..., ::2],
        "reversed": np.ascontiguousarray(array[..., ::-1])[..., ::-1],
        "fortran": np.asfortranarray(array),
        "swapped axes": np.ascontiguousarray(np.swapaxes(array, 0, 1)).swapaxes(0, 1),
        "unaligned": unaligned,
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [CASE, Case("5d", (2, 6, 3, 4, 5), 3)], ids=lambda case: case.name)
def test_every_combination_of_views_gives_the_same_bits(case, dtype):
    inputs = cases.make(case, dtype)
    expected = _call(inputs)
    for (kind, x), dy in itertools.product(_views(inputs.x).items(), _views(inputs.dy).values()):
        result = _call(inputs._replace(x=x, dy=dy))
        assert _same(result, expected), kind
        assert result.dx.strides == np.empty_like(x).strides, kind
    forward = groupnorm.group_norm(inputs.x, case.num_groups, inputs.gamma)
    for kind, x in _views(inputs.x).items():
        result = groupnorm.group_norm(x, case.num_groups, inputs.gamma)
        assert _same(result, forward), kind
        assert result.y.strides == np.empty_like(x).strides, kind


def test_expanded_and_strided_parameters():
    inputs = cases.make(CASE, np.float32)
    dy = np.broadcast_to(np.float32(1.5), CASE.shape)
    assert _same(_call(inputs._replace(dy=dy)), _call(inputs._replace(dy=dy.copy())))
    strided = inputs._replace(
        gamma=np.repeat(inputs.gamma, 2)[::2],
        mean=np.asfortranarray(inputs.mean),
        rstd=np.repeat(inputs.rstd, 3, axis=1)[:, ::3],
    )
    assert _same(_call(strided), _call(inputs))


def test_printed_formula_takes_views():
    inputs = cases.grouped(cases.make(CASE, np.float32))
    expected = groupnorm.group_normalization_grad(*_printed_order(inputs))
    for x, dy in zip(_views(inputs.x).values(), reversed(_views(inputs.dy).values()), strict=True):
        dx = groupnorm.group_normalization_grad(*_printed_order(inputs._replace(x=x, dy=dy)))
        assert dx.flags.c_contiguous
        assert bits(dx) == bits(expected)


def _printed_order(inputs):
    return inputs.x, inputs.dy, inputs.gamma, inputs.mean, inputs.rstd


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("move", [np.ascontiguousarray, channels_last], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("case", [CASE, Case("split", (1, 8, 70, 71), 1)], ids=lambda case: case.name)
def test_out_and_in_place(case, dtype, move):
    inputs = cases.make(case, dtype)
    inputs = inputs._replace(x=move(inputs.x), dy=move(inputs.dy))
    expected = _call(inputs)
    out = tuple(np.empty_like(array) for array in expected)
    result = _call(inputs, out=out)
    assert all(a is b for a, b in zip(result, out, strict=True))
    assert _same(out, expected)
    for name in ("x", "dy"):
        for threads in (1, 2):
            fresh = inputs._replace(x=inputs.x.copy(order="K"), dy=inputs.dy.copy(order="K"))
            result = _call(fresh, out=(getattr(fresh, name), None, None), num_threads=threads)
            assert result.dx is getattr(fresh, name)
            assert _same(result, expected)
    y = groupnorm.group_norm(inputs.x, case.num_groups, inputs.gamma)
    fresh_x = inputs.x.copy(order="K")
    assert groupnorm.group_norm(fresh_x, case.num_groups, inputs.gamma, out=(fresh_x, None, None)).y is fresh_x
    assert bits(fresh_x) == bits(y.y)


def test_in_place_on_a_view_that_is_computed_through_a_copy():
    inputs = cases.make(CASE, np.float32)
    expected = _call(inputs)
    x = np.asfortranarray(inputs.x)
    result = _call(inputs._replace(x=x), out=(x, None, None))
    assert result.dx is x
    assert _same(result, expected)


def test_printed_formula_in_place():
    inputs = cases.grouped(cases.make(CASE, np.float32))
    expected = groupnorm.group_normalization_grad(*_printed_order(inputs))
    for name in ("x", "dy"):
        fresh = inputs._replace(x=inputs.x.copy(), dy=inputs.dy.copy())
        target = getattr(fresh, name)
        assert groupnorm.group_normalization_grad(*_printed_order(fresh), out=target) is target
        assert bits(target) == bits(expected)


def test_read_only_inputs_and_memory_maps(tmp_path):
    inputs = cases.make(CASE, np.float32)
    expected = _call(inputs)
    np.save(tmp_path / "x.npy", inputs.x)
    inputs = inputs._replace(x=np.load(tmp_path / "x.npy", mmap_mode="r"))
    for array in inputs:
        if array.flags.writeable:
            array.flags.writeable = False
    result = _call(inputs)
    assert _same(result, expected)
    assert type(result.dx) is np.ndarray


def test_two_raw_bytes_are_bfloat16(tmp_path):
    inputs = cases.make(CASE, BFLOAT16)
    np.save(tmp_path / "x.npy", inputs.x)
    raw = np.load(tmp_path / "x.npy")
    assert raw.dtype == np.dtype("V2")
    result = _call(inputs._replace(x=raw))
    assert result.dx.dtype == np.dtype("V2")
    assert _same(result, _call(inputs))


@pytest.mark.parametrize("shape", [(0, 4, 3), (3, 4, 0), (3, 0, 5), (0, 4), (2, 0)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_empty_arrays(shape, dtype):
    x, stats = np.empty(shape, dtype), np.ones((shape[0], 2), dtype)
    gamma = np.ones(shape[1], dtype)
    out = (x.copy(), np.full(shape[1], 7, dtype), np.full(shape[1], 7, dtype))
    result = groupnorm.group_norm_backward(x, x, stats, stats, gamma, out=out)
    assert result.dx.shape == shape
    assert (result.dgamma == 0).all()
    assert (result.dbeta == 0).all()
    y, mean, rstd = groupnorm.group_norm(x, 2, eps=0.25)
    assert y.shape == shape
    assert (mean == 0).all()
    assert (rstd == 2).all()
    if len(shape) == 3 and dtype != np.float64:
        full = np.ones(shape[:2], dtype)
        assert groupnorm.group_normalization_grad(x, x, x, full, full).shape == shape
        assert groupnorm.formula_gap(x, x, x, full, full) == (0, 0, 0, 0)


def test_conversions_of_every_16_bit_number(isa):
    every = np.arange(2**16, dtype=np.uint16)
    for dtype in (np.dtype(np.float16), BFLOAT16):
        numbers = every.view(dtype)
        numbers = numbers[np.isfinite(numbers)]
        zero = np.zeros(numbers.shape[0], dtype)
        # One group of two positions, dy and -dy: both means are 0, so dx is gamma * dy, rounded once.
        dy = np.stack([numbers, -numbers], axis=-1)[:, None, :]
        x = np.zeros_like(dy)
        for gamma in (1.0, 0.333251953125, 3.1e-5, 1.0000001):
            gamma = np.full(1, gamma, np.float32)
            dx = groupnorm.group_norm_backward(dy, x, zero[:, None], zero[:, None] + 1, gamma).dx
            with np.errstate(over="ignore"):
                expected = (gamma[0] * dy.astype(np.float32)).astype(dtype)
            assert bits(dx + dtype.type(0)) == bits(expected + dtype.type(0)), (dtype, gamma)  # one sign of zero
        # dbeta of one position each is dy itself, through float64 and back.
        dbeta = groupnorm.group_norm_backward(
            numbers[None, :], zero[None, :], zero[None, :], zero[None, :], zero, output_mask=(False, False, True)
        ).dbeta
        assert bits(dbeta + dtype.type(0)) == bits(numbers + dtype.type(0))


def test_sums_round_to_16_bits_once(isa):
    # 1 + 2^-11 + 2^-30: float32 drops the last term, after which float16 would round the tie down.
    for dtype, half_ulp in ((np.dtype(np.float16), 2.0**-11), (np.dtype(ml_dtypes.bfloat16), 2.0**-8)):
        tiny = 2.0**-24 if dtype == np.float16 else 2.0**-30
        dy = np.array([[1.0], [half_ulp], [tiny]], dtype)
        stats = np.zeros((3, 1), dtype)
        for sign in (1, -1):
            result = groupnorm.group_norm_backward((sign * dy).astype(dtype), dy, stats, stats, np.ones(1, dtype))
            assert float(result.dbeta[0]) == sign * (1 + 2 * half_ulp)


def test_formula_gap_is_the_difference():
    for dtype in (np.float32, np.float16, BFLOAT16):
        inputs = cases.grouped(cases.make(CASE, dtype))
        gap = groupnorm.formula_gap(*_printed_order(inputs))
        x, dy, gamma, mean, rstd = (a.astype(np.float64) for a in _printed_order(inputs))
        xhat = (x - mean[..., None, None, None]) * rstd[..., None, None, None]
        axes = (2, 3, 4)
        s1, s2 = (dy * gamma).mean(axes, keepdims=True), (dy * gamma * xhat).mean(axes, keepdims=True)
        printed = rstd[..., None, None, None] * gamma * (dy - s1 - xhat * s2)
        true = rstd[..., None, None, None] * (gamma * dy - s1 - xhat * s2)
        difference = printed - true
        expected = (
            np.abs(difference).max(),
            np.sqrt((difference**2).mean()),
            np.abs(difference).max() / np.abs(true).max(),
            np.sqrt((difference**2).mean() / (true**2).mean()),
        )
        np.testing.assert_allclose(gap, expected, rtol=1e-9)
        assert gap.max_abs > 0
        ones = inputs._replace(gamma=np.ones_like(inputs.gamma))
        assert groupnorm.formula_gap(*_printed_order(ones)) == (0, 0, 0, 0)


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_formula_gap_passes_nan_on(special):
    inputs = cases.grouped(cases.make(CASE, np.float32))
    inputs.dy[0, 0, 0, 0, 0] = special
    with np.errstate(all="raise"):
        assert np.isnan(groupnorm.formula_gap(*_printed_order(inputs)).max_abs)


def test_a_foreign_array_without_a_way_back_is_refused():
    inputs = cases.make(CASE, np.float32)

    class Orphan:
        dtype = "float32"

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    with pytest.raises(TypeError, match="x: Orphan, whose library has no from_dlpack"):
        _call(inputs._replace(x=Orphan(inputs.x)))


def test_torch_tensors_come_back_as_torch_tensors():
    torch = pytest.importorskip("torch", reason="torch is not installed: `make test` installs it")
    for dtype, kind in zip(DTYPES, (torch.float32, torch.float16, torch.bfloat16, torch.float64), strict=True):
        inputs = cases.make(CASE, dtype)
        expected = _call(inputs)

        def tensor(array, kind=kind):
            if array.dtype == BFLOAT16:
                return torch.from_numpy(array.view(np.int16).copy()).view(kind)
            return torch.from_numpy(array.copy())

        def values(result):
            return bits(result.contiguous().view(torch.uint8).numpy())

        tensors = inputs._replace(**{name: tensor(a) for name, a in inputs._asdict().items()})
        for form in (torch.contiguous_format, torch.channels_last):
            moved = tensors._replace(x=tensors.x.to(memory_format=form))
            result = _call(moved)
            for array, wanted in zip(result, expected, strict=True):
                assert isinstance(array, torch.Tensor)
                assert values(array) == bits(wanted)
            assert result.dx.dtype == kind
            assert result.dx.stride() == moved.x.stride()
            y = groupnorm.group_norm(moved.x, CASE.num_groups, moved.gamma).y
            assert isinstance(y, torch.Tensor)
            assert y.stride() == moved.x.stride()
            given = torch.empty_like(moved.x)
            assert _call(moved, out=(given, None, None)).dx is given
            assert values(given) == bits(expected.dx)
    wanted = torch.float64, torch.bfloat16
    for kind in wanted:
        tensors = inputs._replace(**{name: torch.zeros(a.shape, dtype=kind) for name, a in inputs._asdict().items()})
        with pytest.raises(TypeError, match=r"x: a tensor that requires grad; accepted: tensor.detach\(\)"):
            _call(tensors._replace(x=tensors.x.clone().requires_grad_()))
        with pytest.raises(TypeError, match=r"dy: a tensor that is negated in name only"):
            _call(tensors._replace(dy=torch._neg_view(tensors.dy)))
        with pytest.raises(TypeError, match=r"out \(dx\): a tensor that requires grad"):
            _call(tensors, out=(tensors.x.clone().requires_grad_(), None, None))
        fake = torch._subclasses.FakeTensorMode().from_tensor(tensors.x)
        with pytest.raises(TypeError, match=r"x: a fake tensor, which has no memory"):
            _call(tensors._replace(x=fake))


class _Foreign:
    """A read-only array of a library with an array namespace, as JAX's are."""

    def __init__(self, array):
        self._array = array.copy()
        self._array.flags.writeable = False
        self.dtype = array.dtype

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    def __array_namespace__(self):
        class Namespace:
            @staticmethod
            def from_dlpack(array):
                return _Foreign(np.from_dlpack(array))

        return Namespace


def test_arrays_of_a_library_with_a_namespace():
    inputs = cases.make(CASE, np.float32)
    foreign = inputs._replace(**{name: _Foreign(a) for name, a in inputs._asdict().items()})
    result = _call(foreign)
    assert all(isinstance(array, _Foreign) for array in result)
    assert _same([array._array for array in result], _call(inputs))
    mixed = _call(foreign._replace(x=inputs.x))
    assert type(mixed.dx) is np.ndarray
    with pytest.raises(ValueError, match=r"out \(dx\): a read-only array"):
        _call(inputs, out=(_Foreign(inputs.x), None, None))

"""PyTorch's way to the Triton kernels, with CPU tensors standing for a device's; public reports; what is refused."""

import sys

import numpy as np
import pytest

from groupnorm import cases, reference
from groupnorm.cases import Case, uniform
from triton_interpreted import array, channels_last, gt, interpreter, tensor, torch  # noqa: F401

from groupnorm.torch import device  # isort: skip

OPS = torch.ops.groupnorm
NAMES = ("group_norm", "group_norm_backward", "group_normalization_grad")


@pytest.fixture
def routed(monkeypatch):
    monkeypatch.setattr(device, "_DEVICES", ("cpu",))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", ["CUDA", "PrivateUse1", "CPU"])
def test_a_kernel_stands_behind_each_kind_of_device(name, key):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"groupnorm::{name}", key)


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_are_those_of_the_cpu_within_rounding(routed, dtype, activation):
    generator = torch.Generator().manual_seed(1)
    x, dy = (torch.randn(2, 6, 4, 5, generator=generator).to(dtype) for _ in range(2))
    x = channels_last(x)
    weight, bias = torch.randn(6, generator=generator), torch.randn(6, generator=generator)
    expected = OPS.group_norm(x, 3, weight, bias, 1e-5, activation)
    found = device.group_norm(x, 3, weight, bias, 1e-5, activation)
    _, mean, rstd = expected
    rest = (mean, rstd, weight, bias, [True, True, True], activation)
    expected += OPS.group_norm_backward(dy, x, *rest)
    found += device.group_norm_backward(dy, x, *rest)
    for got, want in zip(found, expected, strict=True):
        assert got.dtype == want.dtype
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=2**-7 if got.dtype == torch.bfloat16 else 2e-6, atol=2e-6)


def test_without_triton_the_operator_is_refused_by_name(routed, monkeypatch):
    monkeypatch.setitem(sys.modules, "groupnorm.triton", None)
    x = torch.ones(1, 2, 3)
    with pytest.raises(NotImplementedError, match=r"groupnorm::group_norm: a tensor on cpu without Triton"):
        device.group_norm(x, 1)


def test_another_kind_of_device_is_refused_by_name():
    with pytest.raises(NotImplementedError, match=r"group_norm: a tensor on cpu; accepted: cpu, cuda, npu"):
        device.group_norm(torch.ones(1, 2, 3), 1)


def test_arguments_are_refused_by_name():
    x, stats = torch.ones(2, 4, 3), torch.ones(2, 2)
    for arguments, error, words in (
        ((None, x, stats, stats), TypeError, "dy: None"),
        ((x.double(), x.double(), stats.double(), stats.double()), TypeError, "float64"),
        ((x.int(), x, stats, stats), TypeError, "dy: dtype int32"),
        ((x[:1], x, stats, stats), ValueError, r"dy: shape \(1, 4, 3\)"),
        ((x, x, torch.ones(2, 3), torch.ones(2, 3)), ValueError, "num_groups = 3"),
        ((x, x, stats, stats, torch.ones(2)), ValueError, r"gamma: shape \(2,\)"),
    ):
        with pytest.raises(error, match=words):
            gt.group_norm_backward(*arguments)
    with pytest.raises(ValueError, match="activation: 'gelu'"):
        gt.group_norm_backward(x, x, stats, stats, activation="gelu")
    with pytest.raises(ValueError, match="recenter: True with an activation"):
        gt.group_norm_backward(x, x, stats, stats, activation="silu", recenter=True)


# ---- public reports (the numbers are those of test_public_reports.py) ----


def report(x, dy, gamma, groups, dtype=np.float32):
    x = x.astype(cases.make(Case("", (1, 1), 1), dtype).x.dtype)
    _, mean, rstd = reference.group_norm(x, groups)
    gamma = None if gamma is None else gamma.astype(np.float32)
    return dy.astype(x.dtype), x, mean.astype(np.float32), rstd.astype(np.float32), gamma


def errors(arguments):
    found = gt.group_norm_backward(*(None if a is None else tensor(a) for a in arguments))
    truth = reference.group_norm_backward(*arguments)
    return [np.abs(array(f) - t).max() / max(np.abs(t).max(), 1e-300) for f, t in zip(found, truth, strict=True)]


u = uniform


@pytest.mark.parametrize(
    ("x", "dy", "gamma", "groups", "dx", "dgamma"),
    [
        (0.5 + 0.5 * u((1, 8, 32, 64, 64), 201), u((1, 8, 32, 64, 64), 202), 1 + 0.5 * u((8,), 203), 2, 5e-7, 1e-6),
        (1e4 + 2 * u((2, 32, 32, 32), 11), 3 + u((2, 32, 32, 32), 12), 1 + 0.25 * u((32,), 13), 8, 1e-6, 1e-6),
        (u((600, 32, 1, 3), 301), u((600, 32, 1, 3), 302), 1 + 0.5 * u((32,), 303), 16, 1e-6, 1e-6),
        (u((4, 16, 8), 1), u((4, 16, 8), 2), None, 4, 5e-7, 1e-6),
    ],
    ids=["O1-large-groups", "O13-large-mean", "O24-large-batch", "O16-no-gamma"],
)
def test_reported_accuracy(x, dy, gamma, groups, dx, dgamma):
    found = errors(report(x, dy, gamma, groups))
    assert found[0] <= dx
    assert found[1] <= dgamma
    assert found[2] <= 1e-6


def test_reported_mixed_layouts_and_expanded_dy():  # O2
    dy, x, mean, rstd, gamma = (tensor(a) for a in report(u((2, 8, 4, 6), 81), u((2, 8, 4, 6), 82), u((8,), 83), 2))
    expected = gt.group_norm_backward(dy, x, mean, rstd, gamma)
    for a in (dy, channels_last(dy), torch.cat([dy, dy], -1)[..., :6]):
        for b in (x, channels_last(x), torch.cat([x, x], -1)[..., :6]):
            dx, dgamma, _ = gt.group_norm_backward(a, b, mean, rstd, gamma)
            assert dx.stride() == torch.empty_like(b).stride()
            torch.testing.assert_close(dx, expected[0], rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(dgamma, expected[1], rtol=1e-5, atol=1e-6)
    constant = torch.tensor(1.5).expand(2, 8, 4, 6)
    assert (gt.group_norm_backward(constant, x, mean, rstd, gamma)[2] == 72).all()


@pytest.mark.parametrize("shape", [(0, 4, 3), (3, 4, 0), (2, 0, 3)])
def test_reported_empty_tensors(shape):  # O9
    x, stats = torch.zeros(shape), torch.ones(shape[0], 2)
    dx, dgamma, dbeta = gt.group_norm_backward(x, x, stats, stats)
    assert dx.shape == shape
    assert (dgamma == 0).all()
    assert (dbeta == 0).all()


def test_reported_exact_zeros_and_a_huge_rstd():  # O10, O25
    x = tensor(u((3, 8, 1, 1), 221).astype(np.float32))
    dy = tensor(u((3, 8, 1, 1), 222).astype(np.float32))
    dx, dgamma, _ = gt.group_norm_backward(dy, x, x[..., 0, 0], torch.full((3, 8), 1e-5).rsqrt())
    assert (dx == 0).all()
    assert (dgamma == 0).all()
    x, dy = torch.full((1, 4, 2, 2), 3.0), tensor(u((1, 4, 2, 2), 112).astype(np.float32))
    dx, dgamma, _ = gt.group_norm_backward(dy, x, torch.full((1, 1), 3.0), torch.full((1, 1), 1e15))
    expected = 1e15 * (array(dy) - array(dy).mean())
    assert np.abs(array(dx) - expected).max() <= 1e-6 * np.abs(expected).max()
    assert (dgamma == 0).all()


def test_reported_scale_of_dy_and_rank_2():  # O11, O22
    arguments = [tensor(a) for a in report(u((2, 8, 16, 16), 251), u((2, 8, 16, 16), 252), 1 + 0.5 * u((8,), 253), 2)]
    one = gt.group_norm_backward(*arguments)
    scaled = gt.group_norm_backward(arguments[0] * 2.0**40, *arguments[1:])
    assert all(torch.equal(a * 2.0**40, b) for a, b in zip(one, scaled, strict=True))
    dy, x, *rest = (tensor(a) for a in report(u((5, 12), 1), u((5, 12), 2), u((12,), 3), 3))
    flat, deep = gt.group_norm_backward(dy, x, *rest), gt.group_norm_backward(dy[..., None], x[..., None], *rest)
    assert torch.equal(flat[0], deep[0][..., 0])


def test_reported_bfloat16_channels_last_of_four_channels_a_group():  # O3
    shape = (2, 8, 16, 16)
    dy, x, mean, rstd, gamma = report(0.5 + 0.5 * u(shape, 211), 0.5 + 0.5 * u(shape, 212), u((8,), 213), 2, "bfloat16")
    truth = reference.group_norm_backward(dy, x, mean, rstd, gamma)
    last = (channels_last(tensor(dy)), channels_last(tensor(x)))
    found = gt.group_norm_backward(*last, *(tensor(a) for a in (mean, rstd, gamma)))
    for got, want, most in zip(found, truth, (4e-3, 1e-5, 1e-6), strict=True):
        assert np.abs(array(got) - want).max() <= most * np.abs(want).max()


def test_reported_ambiguous_strides_of_single_positions():  # O4
    dy, x, mean, rstd, _ = (a if a is None else tensor(a) for a in report(u((8, 12), 1), u((8, 12), 2), None, 3))
    expected = gt.group_norm_backward(dy[..., None, None], x[..., None, None], mean, rstd)
    odd = x.as_strided((8, 12, 1, 1), (12, 1, 8 * 12 * 12, 1))
    found = gt.group_norm_backward(dy.as_strided((8, 12, 1, 1), (12, 1, 12, 12)), odd, mean, rstd)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_reported_overflow_inside_float16():  # O14
    dy, x, mean, rstd, _ = report(62500 + 2500 * u((2, 8, 8, 8), 1), u((2, 8, 8, 8), 2), None, 2, np.float16)
    truth = reference.group_norm_backward(dy, x, mean, rstd)
    dx, dgamma, _ = gt.group_norm_backward(*(tensor(a) for a in (dy, x, mean, rstd)))
    assert dgamma.dtype == torch.float32
    # Rounded once: dx is as small as 1 / 1440, where float16 still has ten bits.
    assert np.abs(array(dx) - truth.dx).max() <= 1e-3 * np.abs(truth.dx).max()
    many = torch.full((1, 2, 128, 128), 8.0, dtype=torch.float16)
    stats = torch.ones(1, 1)
    assert (gt.group_norm_backward(many, many, stats, stats)[2] == 131072).all()
    assert torch.isinf(gt.group_norm_backward(many, many, stats.half(), stats.half())[2]).all()


def test_reported_scale_of_each_group_is_refused():  # O21
    x, stats = torch.ones(2, 4, 3), torch.ones(2, 2)
    with pytest.raises(ValueError, match=r"gamma: shape \(2,\)"):
        gt.group_norm_backward(x, x, stats, stats, torch.ones(2))


@pytest.mark.parametrize("groups", [0, -1, 3])
def test_reported_groups_that_do_not_divide(groups):  # O5
    x = torch.ones(2, 4, 3)
    with pytest.raises(ValueError, match=rf"num_groups = {groups} with C = 4|num_groups: .*{groups}.*C = 4"):
        gt.group_norm(x, groups)
    stats = torch.ones(2, max(0, groups))
    with pytest.raises(ValueError, match=r"num_groups = [03] with C = 4|mean: shape \(2, 0\)"):
        gt.group_norm_backward(x, x, stats, stats)


def test_reported_dtypes_that_do_not_go_together():  # O6
    x, stats, gamma = torch.ones(2, 4, 3), torch.ones(2, 2), torch.ones(4)
    for arguments, words in (
        ((x, x.half(), stats, stats, gamma), ("x", "float16", "dy", "float32")),
        ((x.bfloat16(), x.bfloat16(), stats.half(), stats, gamma), ("mean", "float16", "bfloat16")),
        ((x, x, stats, stats, gamma.bfloat16()), ("gamma", "bfloat16", "float32")),
    ):
        with pytest.raises(TypeError) as caught:
            gt.group_norm_backward(*arguments)
        assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 8, 4, 6), (1, 8, 2, 3, 5)])
@pytest.mark.parametrize("last", [False, True])
def test_reported_layouts_and_dtypes_are_those_of_the_fake_operator(routed, shape, last, dtype):  # O15, O23
    x, dy = (tensor(u(shape, seed).astype(np.float32)).to(dtype) for seed in (1, 2))
    x = channels_last(x) if last else x
    stats, weight = torch.ones(shape[0], 2), torch.ones(8)
    arguments = (dy, x, stats, stats, weight, None, [True, True, True])
    found = device.group_norm_backward(*arguments)
    assert found[0].stride() == x.stride()
    with torch._subclasses.FakeTensorMode() as mode:
        fake = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        expected = OPS.group_norm_backward(*fake)
    for got, want in zip(found, expected, strict=True):
        assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())

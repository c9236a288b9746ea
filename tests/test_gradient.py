"""Operator B is the gradient: central differences of the forward, and torch's autograd in float64."""

from __future__ import annotations

import numpy as np
import pytest

import groupnorm
from groupnorm import cases, reference
from groupnorm.cases import Case, uniform

CASE = Case("case", (2, 6, 3, 4), 3)
EPS = 1e-5


def _loss(x, gamma, beta, dy):
    """Whose gradient it is: sum of dy * y."""
    return float((dy * reference.group_norm(x, CASE.num_groups, gamma, beta, EPS).y).sum())


@pytest.fixture(scope="module")
def operands():
    x, dy, gamma, mean, rstd = cases.make(CASE, np.float64)
    return x, dy, gamma, uniform((6,), 4), mean, rstd


def _central_differences(function, at):
    step = 1e-5
    gradient = np.empty_like(at)
    for index in np.ndindex(at.shape):
        ahead, behind = at.copy(), at.copy()
        ahead[index] += step
        behind[index] -= step
        gradient[index] = (function(ahead) - function(behind)) / (2 * step)
    return gradient


def test_central_differences(operands, isa):
    x, dy, gamma, beta, mean, rstd = operands
    grads = groupnorm.group_norm_backward(dy, x, mean, rstd, gamma)
    # Truncation is of order step^2 = 1e-10 times third derivatives, cancellation 1e-16 / step = 1e-11.
    np.testing.assert_allclose(grads.dx, _central_differences(lambda v: _loss(v, gamma, beta, dy), x), atol=1e-8)
    np.testing.assert_allclose(grads.dgamma, _central_differences(lambda v: _loss(x, v, beta, dy), gamma), atol=1e-8)
    np.testing.assert_allclose(grads.dbeta, _central_differences(lambda v: _loss(x, gamma, v, dy), beta), atol=1e-8)


def test_printed_formula_is_not_the_gradient_unless_gamma_is_one(operands):
    x, dy, gamma, _, mean, rstd = operands
    for weights, equal in ((np.ones_like(gamma), True), (gamma, False), (2 * np.ones_like(gamma), False)):
        inputs = cases.grouped(cases.Inputs(x, dy, weights, mean, rstd))
        order = (inputs.x, inputs.dy, inputs.gamma, inputs.mean, inputs.rstd)
        printed = reference.group_normalization_grad(*order).reshape(x.shape)
        true = reference.group_norm_backward(dy, x, mean, rstd, weights).dx
        assert np.allclose(printed, true, rtol=0, atol=1e-12) == equal
        single = [a.astype(np.float32) for a in order]
        assert (groupnorm.formula_gap(*single).max_rel < 1e-6) == equal


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_torch_float64_autograd(operands, layout):
    torch = pytest.importorskip("torch", reason="torch is not installed: `make test` installs it")
    x, dy, gamma, beta, mean, rstd = operands
    tensors = [torch.tensor(a, requires_grad=True) for a in (x, gamma, beta)]
    if layout == "channels_last":
        tensors[0] = torch.tensor(x).to(memory_format=torch.channels_last).requires_grad_()
    y = torch.nn.functional.group_norm(tensors[0], CASE.num_groups, tensors[1], tensors[2], EPS)
    y.backward(torch.tensor(dy))
    ours = groupnorm.group_norm_backward(dy, x, mean, rstd, gamma)
    for tensor, grad in zip(tensors, ours, strict=True):
        np.testing.assert_allclose(grad, tensor.grad.numpy(), rtol=0, atol=1e-12)
    forward = groupnorm.group_norm(x, CASE.num_groups, gamma, beta, EPS)
    np.testing.assert_allclose(forward.y, y.detach().numpy(), rtol=0, atol=1e-12)


def test_the_documents_example():
    """x = (i % 128) / 128, dy = 0.5, gamma = 1, mean = 0, rstd = 1: s1 = 64, s2 = 31.75."""
    x = (np.arange(2 * 4 * 128, dtype=np.float32) % 128 / 128).reshape(2, 4, 128)
    dy, gamma = np.full_like(x, 0.5), np.ones_like(x)
    mean, rstd = np.zeros((2, 4), np.float32), np.ones((2, 4), np.float32)
    dx = groupnorm.group_normalization_grad(x, dy, gamma, mean, rstd)
    expected = -(np.arange(1024) % 128) / 128 * 31.75 / 128
    np.testing.assert_allclose(dx.ravel(), expected, rtol=2**-24)
    assert [f"{dx.ravel()[i]:.6f}" for i in (1, 127)] == ["-0.001938", "-0.246109"]


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize(
    ("dtype", "level", "spread", "rstd"),
    [
        (np.float32, 1e38, 0, 316.0),  # the mean times rstd is above the largest number
        (np.float32, 3e38, 0, 1e10),
        (np.float32, 1e20, 0, -1e30),
        (np.float32, 1e38, 1e31, 1e-31),
        (np.float32, -2e38, 1e37, 1e-37),
        (np.float32, 5.0, 1e-3, 1e3),
        (np.float32, 0.0, 1.0, 1e-39),  # a subnormal rstd
        (np.float64, 1e300, 1e290, 1e-290),
        (np.float64, 1e-300, 1e-301, 1e290),
    ],
)
def test_a_pivot_at_the_ends_of_the_range(dtype, level, spread, rstd, layout):
    rng = np.random.default_rng(1)
    x = (level + spread * rng.standard_normal((2, 4, 40))).astype(dtype)
    dy = rng.standard_normal(x.shape).astype(dtype)
    mean = (x[:, ::2, :1] if spread == 0 else x.reshape(2, 2, -1).mean(2, dtype=np.float64)).reshape(2, 2).astype(dtype)
    arguments = (dy, x, mean, np.full((2, 2), rstd, dtype), np.ones(4, dtype))
    expected = reference.group_norm_backward(*arguments)
    if layout == "channels_last":
        arguments = (
            tuple(np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1) for a in (dy, x)) + arguments[2:]
        )
    for got, want in zip(groupnorm.group_norm_backward(*arguments), expected, strict=True):
        most = 5e-7 if dtype == np.float32 else 1e-14
        assert np.abs(got - want).max() <= most * np.abs(want).max()

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

"""Tensors and uses that are not the usual ones: a right value as PyTorch's, or an error that says what is accepted."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: `make test` installs it")
import torch.autograd.forward_ad as forward_ad  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.func import jvp  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import groupnorm.torch as gt  # noqa: E402

pytestmark = pytest.mark.usefixtures("each_function")

X = torch.randn(2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
W = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("where", ["input", "weight", "bias", "grad_output"])
def test_negative_views(where):
    """A view that negates what lies in memory."""
    operands = {"input": X, "weight": W, "bias": W.flip(0), "grad_output": X.cos()}
    operands[where] = torch._neg_view(operands[where])
    results = []
    for function in (gt.group_norm, F.group_norm):
        x = operands["input"].detach().requires_grad_()
        y = function(x, 3, operands["weight"], operands["bias"])
        y.backward(operands["grad_output"])
        results.append((y.detach(), x.grad))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "traced",
    [
        lambda: torch.compile(
            lambda t: jvp(lambda q: gt.group_norm(q, 3), (t,), (t,))[1], backend="eager", fullgraph=True
        ),
        lambda: lambda t: jvp(torch.jit.trace(lambda q: gt.group_norm(q, 3), t), (t,), (t,)),
        lambda: lambda t: jvp(torch.fx.symbolic_trace(torch.nn.Sequential(gt.GroupNorm(3, 6).double())), (t,), (t,)),
        lambda: lambda t: jvp(lambda q: torch.ops.groupnorm.group_norm(q, 3)[0], (t,), (t,)),
    ],
    ids=["compiled", "traced by jit", "traced by fx", "operator"],
)
def test_forward_mode_of_the_operator_is_refused(traced):
    """PyTorch would go on with a tangent of zeros."""
    with pytest.raises(Exception, match="forward mode of the operator"):
        traced()(X)


def test_forward_mode_in_a_compiled_function_leaves_the_graph():
    compiled = torch.compile(lambda t: jvp(lambda q: gt.group_norm(q, 3), (t,), (t.sin(),))[1], backend="eager")
    torch.testing.assert_close(compiled(X), jvp(lambda q: F.group_norm(q, 3), (X,), (X.sin(),))[1])


def test_a_dual_gradient_is_refused():
    x = X.clone().requires_grad_()
    y = gt.group_norm(x, 3)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward mode of the operator"):
        torch.autograd.grad(y, x, forward_ad.make_dual(X, X))


def test_devices_do_not_mix():
    module = gt.GroupNorm(3, 6).double()
    module.weight = torch.nn.Parameter(module.weight.detach().to("meta"))
    with pytest.raises(ValueError, match="weight: on meta; accepted: cpu"):
        module(X)
    with pytest.raises(ValueError, match="weight: on cpu; accepted: meta"):
        gt.group_norm(X.to("meta"), 3, W)
    mean = torch.zeros(2, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="mean: on meta"):
        torch.ops.groupnorm.group_norm_backward(X, X, mean.to("meta"), mean, None, None, [True] * 3)


def test_memory_that_is_gone_is_refused():
    weight = W.clone()
    weight.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="memory is not allocated"):
        gt.group_norm(X, 3, weight)


def test_other_layouts_are_refused():
    with pytest.raises(TypeError, match=r"input: layout torch\.sparse_coo; accepted: torch\.strided"):
        gt.group_norm(X.to_sparse(), 3)
    with pytest.raises(TypeError, match=r"input: layout torch\._mkldnn"):
        gt.group_norm(X.float().to_mkldnn(), 3)


def test_default_device_does_not_matter():
    x = X.clone().requires_grad_()
    with torch.device("meta"):
        y = gt.group_norm(x, 3, W)
        y.backward(X)
    torch.testing.assert_close(y, F.group_norm(X, 3, W))
    assert x.grad.device.type == "cpu"


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("way", ["save_on_cpu", "hooks", "checkpoint"])
def test_second_derivatives_under_hooks_on_saved_tensors(way, activation):
    def penalty(function, x):
        (g,) = torch.autograd.grad(function(x).sin().sum(), x, create_graph=True)
        return g.pow(2).sum()

    def theirs(t):
        y = F.group_norm(t, 3, W)
        return y if activation is None else F.silu(y)

    results = []
    for function in (lambda t: gt.group_norm(t, 3, W, activation=activation), theirs):
        x = X.clone().requires_grad_()
        if way == "checkpoint":
            checkpoint(penalty, function, x, use_reentrant=False).backward()
        else:
            hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
            with torch.autograd.graph.save_on_cpu() if way == "save_on_cpu" else hooks:
                penalty(function, x).backward()
        results.append(x.grad)
    torch.testing.assert_close(*results)


def test_a_second_derivative_does_not_mix_its_arguments():
    """grad_output is a function of input here, and both count once."""
    results = []
    for function in (gt.group_norm, F.group_norm):
        x = X.clone().requires_grad_()
        (g,) = torch.autograd.grad(function(x, 3, W), x, x.sin(), create_graph=True)
        results.append(torch.autograd.grad(g.cos().sum(), x)[0])
    torch.testing.assert_close(*results)

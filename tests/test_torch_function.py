"""The autograd function of groupnorm.torch in C++ (csrc/torch/function.cc).

What it takes, with the bits of the operators, and what it leaves to them.
"""

import itertools
import subprocess
import sys
import textwrap
import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: `make test` installs it")
import torch.autograd.forward_ad as forward_ad  # noqa: E402
from torch._dynamo import compiled_autograd  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import groupnorm.torch as gt  # noqa: E402
from groupnorm import _core  # noqa: E402
from groupnorm.torch import eager  # noqa: E402
from tensors import ACTIVATIONS, LAYOUTS, OPS, Subclass, make, narrow_pairs, not_plain, same  # noqa: E402

X = torch.randn(2, 4, 3)
W = torch.randn(4)


def built(*arguments):
    """With the defaults of group_norm."""
    return eager.built(*arguments, *(None, None, 1e-5, None)[len(arguments) - 2 :])


class Seen(TorchDispatchMode):
    """The operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_it_is_built():
    """`make test` installs PyTorch before it builds groupnorm; cmake/torch.cmake says what else it needs."""
    assert eager.built is not None


def test_doctor_tells_which_there_is(capsys, monkeypatch):
    from groupnorm.cli import main

    def shown():
        main(["doctor"])
        return " ".join(capsys.readouterr().out.replace("│", " ").split())

    assert "autograd in C++, built for PyTorch" in shown()
    monkeypatch.setattr(eager, "built", None)
    assert "autograd in Python: this build is not for PyTorch" in shown()


def test_without_it_python_takes_its_place():
    code = """
        import sys, torch
        sys.modules["groupnorm.torch._function_" + torch.__version__.replace(".", "_").replace("+", "_")] = None
        import groupnorm.torch as gt
        from groupnorm.torch import eager
        assert eager.built is None
        x = torch.randn(2, 4, 3, requires_grad=True)
        assert "_GroupNorm" in gt.group_norm(x, 2).grad_fn.name()
        print("done")
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert result.stdout == "done\n", result.stderr


# ---- the same results ----


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
@pytest.mark.parametrize(("dtype", "parameter"), narrow_pairs())
def test_bits_and_strides_are_those_of_the_operators(dtype, parameter, layout, activation):
    dy, x, _, _, weight, bias = make(dtype=dtype, parameter=parameter, layout=layout)
    _, mean, rstd = OPS.group_norm(x, 3, weight, bias)
    for wants in itertools.product([True, False], repeat=3):
        for w, b in itertools.product((weight, None), (bias, None)):
            leaves = [None if t is None else t.detach().requires_grad_(want)
                      for t, want in zip((x, w, b), wants, strict=True)]  # fmt: skip
            output = built(leaves[0], 3, leaves[1], leaves[2], 1e-5, activation)
            expected = OPS.group_norm(x, 3, w, b, 1e-5, activation)[0]
            assert same(output.detach(), expected)
            assert output.stride() == expected.stride()
            wanted = [leaf is not None and leaf.requires_grad for leaf in leaves]
            assert output.requires_grad == any(wanted)
            if any(wanted):
                output.backward(dy)
                grads = OPS.group_norm_backward(dy, x, mean, rstd, w, b, wanted, activation)
                for leaf, grad, want in zip(leaves, grads, wanted, strict=True):
                    if want:
                        # Without weight that of bias has the dtype of the statistics.
                        assert same(leaf.grad, grad.to(leaf.dtype))
                        assert leaf.grad.stride() == grad.stride()
                    else:
                        assert leaf is None or leaf.grad is None


@pytest.mark.parametrize("shape", [(0, 6, 4), (2, 6, 0), (3, 6), (1, 6, 1, 1), (2, 6, 1), (2, 6, 2, 1, 3, 2)])
def test_shapes_at_the_edge(shape):
    for layout in ("contiguous", "channels-last"):
        dy, x, mean, rstd, weight, bias = make(shape, layout=layout)
        x.requires_grad_()
        weight.requires_grad_()
        output = built(x, 3, weight, bias)
        output.backward(dy)
        expected = OPS.group_norm_backward(dy, x.detach(), mean, rstd, weight.detach(), bias, [True, True, False])
        assert same(x.grad, expected[0])
        assert same(weight.grad, expected[1])


# ---- what it leaves ----


NOT_PLAIN = not_plain(X)


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_what_is_not_plain_is_left(name):
    assert built(NOT_PLAIN[name], 2) is None
    if name != "none":
        assert built(X, 2, NOT_PLAIN[name]) is None
        assert built(X, 2, W, NOT_PLAIN[name]) is None


@pytest.mark.parametrize(
    "arguments",
    [
        (X, 3), (X, 0), (X, -2), (X, 2**70), (X, 2.0), (X, True), (X, None), (X, 2, W[:3]), (X, 2, W.double()),
        (X, 2, W, X), (X, 2, W, W, float("nan")), (X, 2, W, W, 1), (X, 2, W, W, None), (X, 2, 3.0),
        (X, 2, None, None, float("inf")), (X, 2, None, None, 1e-5, "relu"), (X, 2, None, None, 1e-5, 1),
        (X, 2, W.half()), (X.half(), 2, W.bfloat16()), (X, 2, W.repeat_interleave(2)[::2]),
    ],
)  # fmt: skip
def test_arguments_that_are_left(arguments):
    assert built(*arguments) is None


@pytest.mark.parametrize("offset", [0, 100])
@pytest.mark.parametrize("which", range(3))
def test_freed_memory_is_left(which, offset):
    arguments = [X, W, W]
    flat = torch.zeros(200)
    arguments[which] = flat[offset : offset + arguments[which].numel()].view(arguments[which].shape)
    flat.untyped_storage().resize_(0)
    assert built(arguments[0], 2, *arguments[1:]) is None


def test_whoever_looks_is_shown_the_operator():
    class Nothing(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Seen():
        assert built(X, 2) is None
    with Nothing():
        assert built(X, 2) is None
    found = []
    torch.vmap(lambda x: found.append(built(X, 2)) or x)(X)
    torch.func.grad(lambda x: found.append(built(X, 2)) or x.sum())(X)
    torch.jit.trace(lambda x: found.append(built(x, 2)) or x + 1, X, check_trace=False)
    with forward_ad.dual_level():
        for place in range(3):
            arguments = [X, W, W]
            arguments[place] = forward_ad.make_dual(arguments[place], torch.ones_like(arguments[place]))
            found.append(built(arguments[0], 2, *arguments[1:]))
    assert len(found) >= 6
    assert all(each is None for each in found)
    assert built(X, 2) is not None


# ---- the derivative ----


def recorded(dtype=torch.float32, activation=None):
    dy, x, _, _, weight, bias = make(dtype=dtype)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    return dy, leaves, built(x, 3, weight, bias, 1e-5, activation)


def expected_of(dy, leaves, activation=None):
    x, weight, bias = (leaf.detach() for leaf in leaves)
    _, mean, rstd = OPS.group_norm(x, 3, weight, bias)
    return OPS.group_norm_backward(dy, x, mean, rstd, weight, bias, [True] * 3, activation)


@pytest.mark.parametrize("name", ["permuted", "slice", "unaligned"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_gradient_in_any_layout(name, activation):
    dy, leaves, output = recorded(activation=activation)
    found = torch.autograd.grad(output, leaves, LAYOUTS[name](dy))
    assert all(same(a, b) for a, b in zip(found, expected_of(dy, leaves, activation), strict=True))


def test_gradients_of_other_kinds():
    """Expanded, negated, and zeros without memory."""
    dy, leaves, output = recorded()
    ones = torch.ones(()).expand(output.shape)
    for given, plain in (
        (ones, torch.ones(output.shape)),
        (torch._neg_view(dy), -dy),
        (torch._efficientzerotensor(output.shape), torch.zeros(output.shape)),
    ):
        found = torch.autograd.grad(output, leaves, given, retain_graph=True)
        assert all(same(a, b) for a, b in zip(found, expected_of(plain, leaves), strict=True))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_second_derivatives(activation):
    _, leaves, _ = recorded(torch.float64)
    assert torch.autograd.gradcheck(lambda *t: built(t[0], 3, *t[1:], 1e-5, activation), leaves)
    assert torch.autograd.gradgradcheck(lambda *t: built(t[0], 3, *t[1:], 1e-5, activation), leaves)


def test_a_mode_sees_the_derivative():
    dy, leaves, output = recorded()
    with Seen() as seen:
        found = torch.autograd.grad(output, leaves, dy)
    assert "groupnorm::group_norm_backward" in seen.names
    assert all(same(a, b) for a, b in zip(found, expected_of(dy, leaves), strict=True))


def test_batched_gradients():
    """is_grads_batched: vmap over the derivative."""
    dy, leaves, output = recorded()
    several = torch.stack([dy, 2 * dy])
    found = torch.autograd.grad(output, leaves, several, is_grads_batched=True)
    for i in range(2):
        for a, b in zip(found, expected_of(several[i], leaves), strict=True):
            torch.testing.assert_close(a[i], b)


@pytest.mark.parametrize("unpack", [lambda t: t.float(), lambda t: LAYOUTS["permuted"](t.float()) if t.dim() > 2
                                    else t.float(), lambda t: t.float().as_subclass(Subclass)])  # fmt: skip
def test_hooks_may_hand_back_what_they_like(unpack):
    dy, leaves, _ = recorded()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), unpack):
        output = built(leaves[0], 3, *leaves[1:])
    found = torch.autograd.grad(output, leaves, dy)
    assert all(same(a.as_subclass(torch.Tensor), b) for a, b in zip(found, expected_of(dy, leaves), strict=True))


def test_what_hooks_raise_is_seen():
    class Own(Exception):
        pass

    def raises(tensor):
        raise Own("from a hook")

    leaf = X.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(raises, lambda t: t), pytest.raises(Own, match="from a hook"):
        built(leaf, 2)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, raises):
        output = built(leaf, 2)
    with pytest.raises(Own, match="from a hook"):
        output.sum().backward()
    assert leaf.grad is None


def test_what_was_saved_is_watched():
    leaf = X.clone().requires_grad_()
    x = leaf * 1
    output = built(x, 2)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
    output = built(leaf, 2)
    output.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        output.sum().backward()
    with torch.inference_mode():
        inference = torch.randn(2, 4, 3)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        built(inference, 2, W.clone().requires_grad_())


def test_nothing_is_recorded_where_autograd_does_not_look():
    x = X.clone().requires_grad_()
    with torch.no_grad():
        assert not built(x, 2).requires_grad
    with torch._C._AutoDispatchBelowAutograd():
        assert not built(x, 2).requires_grad
    with torch.inference_mode(), torch.enable_grad():
        assert built(x, 2).is_inference()
    assert not built(X, 2).requires_grad


def test_an_output_of_which_nothing_depends():
    """Its gradient is none, and then zeros."""
    x = X.clone().requires_grad_()

    class Drop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            return y.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    Drop.apply(built(x, 2)).sum().backward()
    assert x.grad is None or not x.grad.any()


def test_compiled_autograd():
    dy, leaves, output = recorded(activation="silu")
    with compiled_autograd._enable(torch.compile(backend="eager")):
        output.backward(dy)
    expected = expected_of(dy, leaves, "silu")
    assert all(same(leaf.grad, b) for leaf, b in zip(leaves, expected, strict=True))


def test_a_profiler_shows_names():
    dy, leaves, _ = recorded()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        built(leaves[0], 3, *leaves[1:]).backward(dy)
    names = {event.key for event in found.key_averages()}
    assert {"groupnorm::group_norm", "groupnorm::group_norm_backward"} <= names


# ---- threads ----


def test_it_has_the_simd_level_and_threads_of_the_core():
    """All modules of a build share one core."""
    calls = []
    for level, compiled, supported in _core.isa_list():
        if compiled and supported:
            assert _core.select_isa(level)
            calls.append(built(X, 2).numpy().tobytes())
    _core.select_isa(None)
    assert len(set(calls)) == 1
    before = torch.get_num_threads()
    x = torch.randn(4, 32, 40, 40)
    results = set()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.add(built(x, 8).numpy().tobytes())
    finally:
        torch.set_num_threads(before)
    assert len(results) == 1


def test_threads_of_the_caller():
    """Forward and backward in several threads at once."""
    dy, leaves, _ = recorded()
    expected = expected_of(dy, leaves)
    wrong = []

    def work():
        for _ in range(50):
            own = [leaf.detach().requires_grad_() for leaf in leaves]
            built(own[0], 3, *own[1:]).backward(dy)
            if not all(same(leaf.grad, b) for leaf, b in zip(own, expected, strict=True)):
                wrong.append(own)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_module_takes_it():
    module = gt.GroupNorm(2, 4)
    assert "function" in module(X.clone().requires_grad_()).grad_fn.name()

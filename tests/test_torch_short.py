"""The short way of groupnorm.torch: taken by plain tensors alone, with the results of the long one; and its threads."""

import itertools
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: `make test` installs it")
import groupnorm.torch as gt  # noqa: E402
from groupnorm import _core  # noqa: E402
from groupnorm.torch import eager, ops  # noqa: E402
from tensors import ACTIVATIONS, OPS, Subclass, make, narrow_pairs, not_plain, same  # noqa: E402

MASKS = list(itertools.product([True, False], repeat=3))


def short_backward(*arguments, may_record=False):
    return _core.plain_tensors_group_norm_backward(may_record, True, 2, *arguments)


def short_forward(*arguments, may_record=False):
    return _core.plain_tensors_group_norm(may_record, True, 2, *arguments)


@pytest.fixture
def long_way(monkeypatch):
    """Makes the operators go the long way."""

    def never(*_):
        return None

    def switch():
        monkeypatch.setattr(_core, "plain_tensors_group_norm", never)
        monkeypatch.setattr(_core, "plain_tensors_group_norm_backward", never)

    return switch


@pytest.fixture
def by_interface(monkeypatch):
    """As with a PyTorch that has no allocator for its compiler: results come from empty_like and new_empty."""
    with monkeypatch.context() as patched:
        patched.delattr(torch._C._dynamo.guards, "_empty_strided_cpu")
        assert _core.use_torch(torch)
    yield
    assert _core.use_torch(torch)


# ---- the same results ----


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
@pytest.mark.parametrize(("dtype", "parameter"), narrow_pairs())
def test_bits_and_strides_are_those_of_the_long_way(dtype, parameter, layout, activation, long_way):
    dy, x, mean, rstd, weight, bias = make(dtype=dtype, parameter=parameter, layout=layout)
    forwards = [(x, 3, w, b, 1e-5, activation) for w in (weight, None) for b in (bias, None)]
    backwards = [
        (dy, x, mean, rstd, w, b, mask, activation) for w in (weight, None) for b in (bias, None) for mask in MASKS
    ]
    short = [short_forward(*each) for each in forwards] + [short_backward(*each) for each in backwards]
    assert sum(each is None for each in short) == 12  # dgamma or dbeta without gamma, whose dtype it would have
    long_way()
    long = [ops.group_norm(*each) for each in forwards] + [ops.group_norm_backward(*each) for each in backwards]
    for results, expected in zip(short, long, strict=True):
        if results is not None:
            assert all(same(a, b) for a, b in zip(results, expected, strict=True))
            pairs = [(a, b) for a, b in zip(results, expected, strict=True) if b is not None]
            assert all(a.stride() == b.stride() for a, b in pairs)
            assert not any(a.requires_grad for a, _ in pairs)


@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
@pytest.mark.parametrize(("dtype", "parameter"), narrow_pairs())
def test_results_from_the_interface_are_the_same(dtype, parameter, layout, by_interface):
    dy, x, mean, rstd, weight, bias = make(dtype=dtype, parameter=parameter, layout=layout)
    by_interface = [*short_forward(x, 3, weight, bias, 1e-5, None)]
    by_interface += short_backward(dy, x, mean, rstd, weight, bias, [True] * 3, None)
    assert _core.use_torch(torch)
    results = [*short_forward(x, 3, weight, bias, 1e-5, None)]
    results += short_backward(dy, x, mean, rstd, weight, bias, [True] * 3, None)
    for a, b in zip(results, by_interface, strict=True):
        assert same(a, b)
        assert a.stride() == b.stride()


@pytest.mark.parametrize("shape", [(0, 6, 4), (2, 6, 0), (3, 6), (1, 6, 1, 1), (2, 6, 1), (2, 6, 2, 1, 3, 2)])
def test_shapes_at_the_edge(shape, long_way):
    arguments = [make(shape, layout=layout) for layout in ("contiguous", "channels-last")]
    short = [short_backward(*each, [True] * 3) for each in arguments]
    assert None not in short
    long_way()
    for each, results in zip(arguments, short, strict=True):
        expected = ops.group_norm_backward(*each, [True] * 3)
        assert all(same(a, b) and a.stride() == b.stride() for a, b in zip(results, expected, strict=True))


# ---- what it leaves to the long way ----

X = torch.randn(2, 4, 3)
W = torch.randn(4)


NOT_PLAIN = not_plain(X)


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_what_is_not_plain_is_left(name):
    assert short_forward(NOT_PLAIN[name], 2) is None
    mean = torch.zeros(2, 2)
    assert short_backward(NOT_PLAIN[name], X, mean, mean, W, None, [True] * 3) is None
    assert short_backward(X, NOT_PLAIN[name], mean, mean, W, None, [True] * 3) is None


@pytest.mark.parametrize(
    "arguments",
    [
        (X, 3), (X, 0), (X, -2), (X, 2**70), (X, 2.0), (X, True), (X, None), (X, 2, W[:3]), (X, 2, W.double()),
        (X, 2, W, X), (X, 2, W, W[::2].repeat_interleave(2).expand(4), float("nan")), (X, 2, W, W, 1),
        (X, 2, None, None, float("inf")), (X, 2, None, None, 1e-5, "relu"), (X, 2, None, None, 1e-5, 1),
        (X, 2, W.half()), (X.half(), 2, W.bfloat16()), (X, 2, NOT_PLAIN["zero"]),
    ],
)  # fmt: skip
def test_forward_arguments_that_are_left(arguments):
    assert short_forward(*arguments) is None


def test_backward_arguments_that_are_left():
    mean = torch.zeros(2, 2)
    mask = [True] * 3
    for arguments in (
        (X, X[:1], mean, mean, W, None, mask), (X, X, mean[0], mean, W, None, mask),
        (X, X, mean, mean[:1], W, None, mask),
        (X, X, mean[:, :0], mean[:, :0], W, None, mask), (X, X, mean, mean.double(), W, None, mask),
        (X, X, torch.zeros(2, 3), torch.zeros(2, 3), W, None, mask), (X, X, mean, mean, W[:2], None, mask),
        (X.half(), X, mean, mean, W, None, mask), (X, X, mean, mean, W, None, mask[:2]), (X, X, mean, mean, W, None, 7),
        (X, X, mean, mean, W, None, mask, "gelu"), (X, X, torch.zeros(4, 2)[::2], mean, W, None, mask),
        (X, X, torch._neg_view(mean), mean, W, None, mask), (X, X, mean, mean, W, W.double(), mask),
    ):  # fmt: skip
        assert short_backward(*arguments) is None, arguments


def test_a_gradient_to_be_recorded_is_left():
    weight = torch.nn.Parameter(W)
    assert short_forward(X, 2, weight, may_record=True) is None
    assert short_forward(X, 2, weight) is not None
    mean = torch.zeros(2, 2)
    for place in range(6):
        arguments = [X, X, mean, mean, W, W]
        arguments[place] = arguments[place].detach().requires_grad_()
        assert short_backward(*arguments, [True] * 3, may_record=True) is None
    assert short_backward(X, X, mean, mean, W, W, [True] * 3, may_record=True) is not None


def test_hostile_torch_functions_do_no_harm(by_interface):
    """A mode that makes other tensors than asked for: the long way is taken, or its error seen."""
    from torch.overrides import TorchFunctionMode

    class Other(TorchFunctionMode):
        def __init__(self, made):
            super().__init__()
            self.made = made

        def __torch_function__(self, func, types, args=(), kwargs=None):
            return self.made if func in (torch.empty_like, torch.Tensor.new_empty) else func(*args, **(kwargs or {}))

    for made in (None, 3, torch.empty(2, 4, 3, device="meta"), torch.empty(1), torch.empty(2, 4, 3).double()):
        with Other(made):
            assert short_forward(X, 2) is None
            assert short_backward(X, X, torch.zeros(2, 2), torch.zeros(2, 2), W, None, [True] * 3) is None


def test_whoever_looks_at_operators_sees_them():
    """Modes, tracing, subclasses; and hooks may hand back what they like."""
    from torch.utils._python_dispatch import TorchDispatchMode

    x = torch.randn(2, 4, 3, requires_grad=True)
    weight = torch.nn.Parameter(torch.randn(4))
    assert eager.group_norm(x, 2, weight, None, 1e-5, None) is not None
    assert eager.group_norm(x.to("meta"), 2, weight.to("meta"), None, 1e-5, None) is None
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.name())
            return func(*args, **(kwargs or {}))

    with Mode():
        gt.group_norm(x, 2, weight).sum().backward()
    assert "groupnorm::group_norm" in seen
    assert "groupnorm::group_norm_backward" in seen
    with Mode(), torch.no_grad():
        seen.clear()
        OPS.group_norm(x, 2, weight)
    assert "groupnorm::group_norm" in seen

    sub = x.detach().as_subclass(Subclass)
    assert eager.group_norm(sub, 2, weight, None, 1e-5, None) is None
    assert same(torch.Tensor(gt.group_norm(sub, 2, weight)), gt.group_norm(x, 2, weight).detach())
    traced = torch.jit.trace(lambda t: gt.group_norm(t, 2), x.detach())
    assert "groupnorm::group_norm" in str(traced.graph)

    long = x.detach().requires_grad_()
    OPS.group_norm(long, 2, weight)[0].sum().backward()
    short = x.detach().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
        gt.group_norm(short, 2, weight).sum().backward()
    assert same(short.grad, long.grad)


def test_negated_tensors_are_negated():
    negated = torch._neg_view(X)
    for call in (gt.group_norm, lambda *a: OPS.group_norm(*a)[0]):
        assert same(call(negated, 2), call(-X, 2))
        assert same(call(X, 2, torch._neg_view(W)), call(X, 2, -W))


@pytest.mark.parametrize("offset", [0, 100])
@pytest.mark.parametrize("which", range(6))
def test_freed_memory_is_refused(which, offset):
    """As FSDP frees what lies flat; the tensor's address is then no more than its offset."""
    mean = torch.zeros(2, 2)
    arguments = [X, X, mean, mean, W, W]
    flat = torch.zeros(200)
    arguments[which] = flat[offset : offset + arguments[which].numel()].view(arguments[which].shape)
    flat.untyped_storage().resize_(0)
    assert short_backward(*arguments, [True] * 3, "silu") is None
    with pytest.raises(ValueError, match="its memory is not allocated; accepted: allocated"):
        OPS.group_norm_backward(*arguments, [True] * 3, "silu")
    if which not in (2, 3):
        x, weight, bias = arguments[1] if which == 1 else arguments[0], *arguments[4:]
        for recorded in (x, x.detach().requires_grad_()):
            with pytest.raises(ValueError, match="its memory is not allocated"):
                gt.group_norm(recorded, 2, weight, bias)


def test_below_autograd_nothing_is_recorded():
    x = X.clone().requires_grad_()
    with torch._C._AutoDispatchBelowAutograd():
        assert not gt.group_norm(x, 2).requires_grad
    with torch.inference_mode(), torch.enable_grad():
        assert gt.group_norm(x, 2).is_inference()


def test_a_number_of_groups_that_is_none():
    for groups in (2.0, "2", None):
        with pytest.raises(TypeError, match=r"num_groups: .*; accepted: an int"):
            gt.group_norm(X, groups)


# ---- threads ----


def test_the_core_works_on_the_threads_of_pytorch():
    """No thread of our own beside those of PyTorch's OpenMP runtime, and the same bits on any number of them."""
    code = """
        import os, threading, torch, groupnorm, groupnorm.torch as gt
        from groupnorm.torch import team
        assert team.join()
        x = torch.randn(4, 32, 40, 40)
        results = set()
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            torch.zeros(10**6).add_(1)  # PyTorch's own threads are there
            before = len(os.listdir("/proc/self/task"))
            results.add(gt.group_norm(x, 8).numpy().tobytes())
            assert len(os.listdir("/proc/self/task")) == before, threads
        assert len(results) == 1
        call = lambda: results.add(gt.group_norm(x, 8).numpy().tobytes())
        callers = [threading.Thread(target=call) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert len(results) == 1
        child = os.fork()  # it has none of PyTorch's threads, and takes ours
        if child == 0:
            os._exit(results != {groupnorm.group_norm(x.numpy(), 8, num_threads=3)[0].tobytes()})
        assert os.waitpid(child, 0)[1] == 0
        print("done")
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert result.stdout == "done\n", result.stderr

"""torch.ops.groupnorm: the core's bits, and everything that PyTorch asks of an operator."""

import copy

import numpy as np
import pytest

import groupnorm
from groupnorm import cases, reference

torch = pytest.importorskip("torch", reason="torch is not installed: `make test` installs it")
import groupnorm.torch as gt  # noqa: E402
from tensors import ACTIVATIONS, LAYOUTS, NARROW, OPS, channels_last, make, narrow_pairs, same  # noqa: E402


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "parameter"), narrow_pairs())
def test_the_bits_are_those_of_the_functions_on_arrays(dtype, parameter, layout, activation):
    dy, x, mean, rstd, weight, bias = make(dtype=dtype, parameter=parameter, layout=layout)
    swish = None if activation is None else "swish"
    y = OPS.group_norm(x, 3, weight, bias, 1e-5, activation)
    expected = groupnorm.group_norm(x.clone(), 3, weight, bias, activation=swish)
    assert all(same(a, b) for a, b in zip(y, expected, strict=True))
    grads = OPS.group_norm_backward(dy, x, mean, rstd, weight, bias, [True] * 3, activation)
    expected = groupnorm.group_norm_backward(
        dy.clone(), x.clone(), mean, rstd, weight, activation=swish, beta=None if swish is None else bias
    )
    assert all(same(a, b) for a, b in zip(grads, expected, strict=True))
    strides = torch.empty_like(x).stride()
    assert y[0].stride() == strides
    assert grads[0].stride() == strides


@pytest.mark.parametrize(
    "mask", [(True, False, False), (False, True, True), (False, False, True), (False, False, False)]
)
@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
def test_a_mask_leaves_the_rest_as_it_is(layout, mask):
    arguments = make((2, 8, 5, 7), 2, layout=layout)
    full = OPS.group_norm_backward(*arguments, [True] * 3)
    some = OPS.group_norm_backward(*arguments, mask)
    assert all(same(a, b if wanted else None) for a, b, wanted in zip(some, full, mask, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, *NARROW])
def test_the_printed_formula_is_the_core_s(dtype):
    x, dy, gamma = (torch.randn(2, 3, 4, 5).to(dtype) for _ in range(3))
    mean, rstd = torch.randn(2, 3).to(dtype), torch.rand(2, 3).to(dtype)
    dx = OPS.group_normalization_grad(x, dy, gamma, mean, rstd)
    assert same(dx, groupnorm.group_normalization_grad(x, dy, gamma, mean, rstd))
    with pytest.raises(RuntimeError, match="has no derivative"):
        OPS.group_normalization_grad(x.requires_grad_(), dy, gamma, mean, rstd).sum().backward()


# ---- what PyTorch checks by itself ----


@pytest.mark.parametrize("layout", ["contiguous", "channels-last", "permuted"])
@pytest.mark.parametrize(("dtype", "parameter"), narrow_pairs())
def test_opcheck(dtype, parameter, layout):
    dy, x, mean, rstd, weight, bias = make(dtype=dtype, parameter=parameter, layout=layout)

    def grad(t):
        return t.detach().clone(memory_format=torch.preserve_format).requires_grad_()

    for activation in ACTIVATIONS:
        torch.library.opcheck(OPS.group_norm.default, (grad(x), 3, grad(weight), grad(bias), 1e-5, activation))
        arguments = (grad(dy), grad(x), mean, rstd, grad(weight), grad(bias))
        torch.library.opcheck(OPS.group_norm_backward.default, (*arguments, [True] * 3, activation))
        torch.library.opcheck(
            OPS.group_norm_backward.default, (*arguments, [True, False, True], activation),
            # An output that is None cannot be summed for a derivative.
            test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
        )  # fmt: skip
    if dtype != torch.float64:
        scale = weight.to(dtype).reshape(1, -1, 1, 1).expand_as(x).contiguous()
        stats = torch.ones(x.shape[:2], dtype=dtype)
        torch.library.opcheck(OPS.group_normalization_grad.default, (x, dy, scale, stats, stats))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(2, 4, 3), (3, 4), (1, 4, 2, 2)])
def test_gradients_by_differences(shape, affine, activation):
    _, x, _, _, weight, bias = make(shape, 2, torch.float64)
    parameters = (weight.requires_grad_(), bias.requires_grad_()) if affine else (None, None)

    def call(x, *parameters):
        return OPS.group_norm(x, 2, *parameters, 1e-5, activation)[0]

    arguments = (x.requires_grad_(), *parameters)
    assert torch.autograd.gradcheck(call, arguments)
    assert torch.autograd.gradgradcheck(call, arguments)


def test_a_third_derivative():
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)

    def slope(x):
        y = gt.group_norm(x, 2)
        (first,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
        return first

    assert torch.autograd.gradgradcheck(slope, (x,))


def test_double_backward_in_float16():
    x = (torch.rand(2, 4, 5) * 2 - 1).half().requires_grad_()
    wide = x.detach().double().requires_grad_()
    dy = torch.randn(2, 4, 5).half()

    def second(x):
        (dx,) = torch.autograd.grad(gt.group_norm(x, 2), x, dy.to(x.dtype), create_graph=True)
        return torch.autograd.grad(dx.double().square().sum(), x)[0]

    result, truth = second(x), second(wide)
    assert result.isfinite().all()
    assert (result.double() - truth).abs().max() <= 4e-3 * truth.abs().max()


# ---- functional transforms ----


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("over", ["input", "weights", "both"])
def test_vmap_is_a_loop(over, activation):
    x, weight, bias = torch.randn(5, 2, 4, 3), torch.randn(5, 4), torch.randn(5, 4)
    dims = {"input": (0, None, None), "weights": (None, 0, 0), "both": (0, 0, 0)}[over]
    x = x if dims[0] == 0 else x[0]
    weight, bias = (weight, bias) if dims[1] == 0 else (weight[0], bias[0])

    def both(x, weight, bias):
        y, mean, rstd = OPS.group_norm(x, 2, weight, bias, 1e-5, activation)
        return y, *OPS.group_norm_backward(x, x, mean, rstd, weight, bias, [True] * 3, activation)

    results = torch.func.vmap(both, dims)(x, weight, bias)
    for i in range(5):
        alone = both(*(t if dim is None else t[i] for t, dim in zip((x, weight, bias), dims, strict=True)))
        assert all(same(a[i], b) for a, b in zip(results, alone, strict=True))


def test_vmap_over_nothing():
    x, stats = torch.zeros(0, 2, 4, 3), torch.zeros(0, 2, 2)
    assert torch.vmap(lambda t: gt.group_norm(t, 2))(x).shape == x.shape
    assert torch.vmap(torch.func.grad(lambda t: gt.group_norm(t, 2).sum()))(x).shape == x.shape
    dims = (0, 0, 0, 0, None, None, None)
    dx, dgamma, dbeta = torch.vmap(OPS.group_norm_backward, dims)(x, x, stats, stats, None, None, [True, True, True])
    assert (dx.shape, dgamma.shape, dbeta.shape) == ((0, 2, 4, 3), (0, 4), (0, 4))
    printed = torch.vmap(OPS.group_normalization_grad, (0, 0, 0, 0, None))(x, x, x, x[..., 0], torch.ones(2, 4))
    assert printed.shape == x.shape


# ---- compilation ----


def _training(module, x):
    y = module(x)
    (y * y).sum().backward()
    return y.detach(), x.grad, *(p.grad for p in module.parameters())


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_gives_the_bits_of_eager(dtype, layout, activation):
    torch._dynamo.reset()
    module = gt.GroupNorm(3, 6, activation=activation)
    with torch.no_grad():
        module.weight.normal_()
        module.bias.normal_()
    x = LAYOUTS[layout](torch.randn(2, 6, 4, 5).to(dtype))
    eager = _training(copy.deepcopy(module), x.clone().requires_grad_())
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    results = _training(compiled, x.clone().requires_grad_())
    assert all(same(a, b) for a, b in zip(results, eager, strict=True))
    assert results[0].stride() == eager[0].stride()
    assert results[1].stride() == eager[1].stride()


def test_inductor_compiles_it_once_for_all_batches():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    module = gt.GroupNorm(3, 6)
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=counter)
    frames = []
    for n in (2, 3, 5, 8):
        x = torch.randn(n, 6, 4, 5)
        y, dx, *_ = _training(compiled, x.clone().requires_grad_())
        frames.append(counter.frame_count)
        expected_y, expected_dx, *_ = _training(module, x.clone().requires_grad_())
        assert same(y, expected_y)
        assert same(dx, expected_dx)
        module.zero_grad()
    assert frames[-1] == frames[0]


def test_export():
    module = gt.GroupNorm(3, 6, activation="silu")
    x = torch.randn(2, 6, 4)
    exported = torch.export.export(module, (x,))
    assert "groupnorm.group_norm" in str(exported.graph)
    assert same(exported.module()(x), module(x))


# ---- errors ----

X = torch.zeros(2, 6, 4)
STATS = torch.zeros(2, 3)
ERRORS = [
    (lambda: gt.group_norm(X, 4), ValueError, "num_groups: num_groups = 4 with C = 6 channels; accepted: a positive"),
    (lambda: gt.group_norm(X, 0), ValueError, "num_groups: num_groups = 0 with C = 6"),
    (lambda: gt.group_norm(X, -3), ValueError, "num_groups: num_groups = -3 with C = 6"),
    (lambda: gt.group_norm(X[0, 0], 1), ValueError, r"input: shape \(4,\); accepted: rank 2 and up"),
    (lambda: gt.group_norm(X.int(), 3), TypeError, "input: dtype int32; accepted: float32, float16, bfloat16, float64"),
    (lambda: gt.group_norm(X, 3, X[0, :, 0].double()), TypeError, "weight: dtype float64; accepted: float32"),
    (lambda: gt.group_norm(X.half(), 3, X[0, :, 0].double()), TypeError, "weight: dtype float64; accepted: float16, f"),
    (lambda: gt.group_norm(X, 3, STATS[0]), ValueError, r"weight: shape \(3,\); accepted: \(6,\), one element per ch"),
    (lambda: gt.group_norm(X, 3, None, X[0]), ValueError, r"bias: shape \(6, 4\); accepted: \(6,\)"),
    (lambda: gt.group_norm(X, 3, eps=float("nan")), ValueError, "eps: nan; accepted: a finite number"),
    (lambda: gt.group_norm(X, 3, activation="relu"), ValueError, "activation: 'relu'; accepted: 'silu' or None"),
    (lambda: OPS.group_norm_backward(X[:1], X, STATS, STATS, None, None, [True] * 3), ValueError,
     r"grad_output: shape \(1, 6, 4\); accepted: \(2, 6, 4\), the shape of input"),
    (lambda: OPS.group_norm_backward(X.half(), X, STATS, STATS, None, None, [True] * 3), TypeError,
     "grad_output: dtype float16; accepted: float32"),
    (lambda: OPS.group_norm_backward(X, X, STATS[0], STATS, None, None, [True] * 3), ValueError,
     r"mean: shape \(3,\); accepted: \(2, num_groups\)"),
    (lambda: OPS.group_norm_backward(X, X, STATS[:, :0], STATS, None, None, [True] * 3), ValueError,
     "mean: num_groups = 0 with C = 6"),
    (lambda: OPS.group_norm_backward(X, X, STATS, STATS[:1], None, None, [True] * 3), ValueError,
     r"rstd: shape \(1, 3\); accepted: \(2, 3\), the shape of mean"),
    (lambda: OPS.group_norm_backward(X, X, STATS, STATS.double(), None, None, [True] * 3), TypeError,
     "rstd: dtype float64; accepted: float32"),
    (lambda: OPS.group_normalization_grad(X, X, X[0], X[..., 0], X[..., 0]), ValueError, "gamma: shape"),
    (lambda: OPS.group_normalization_grad(X, X, X.half(), X[..., 0], X[..., 0]), TypeError, "gamma: dtype float16"),
    (lambda: gt.GroupNorm(0, 6), ValueError, "num_groups: 0 with num_channels = 6"),
    (lambda: gt.GroupNorm(4, 6), ValueError, "num_groups: 4 with num_channels = 6"),
    (lambda: gt.GroupNorm(3, 6, activation="relu"), ValueError, "activation: 'relu'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), ERRORS)
def test_errors_name_the_argument(call, kind, message):
    with pytest.raises(kind, match=message):
        call()
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(kind, match=message):
        call()


def test_another_device_is_refused_by_name():
    with pytest.raises(NotImplementedError, match="groupnorm::group_norm"):
        OPS.group_norm(X.to_mkldnn(), 3)


# ---- where PyTorch itself fails (its own operators on a CPU, 2.13) ----


def test_channels_last_without_gradient_of_x():
    for shape in ((2, 8, 5, 7), (2, 8, 2, 3, 4)):
        module = gt.GroupNorm(2, 8)
        module(channels_last(torch.randn(shape))).sum().backward()
        assert module.weight.grad.isfinite().all()


def test_gradient_in_another_layout():
    dy, x, *rest = make((2, 8, 4, 6), 2)
    expected = OPS.group_norm_backward(dy, x, *rest, [True] * 3)
    for dy_ in (dy, channels_last(dy)):
        for x_ in (x, channels_last(x)):
            assert all(
                same(a, b) for a, b in zip(OPS.group_norm_backward(dy_, x_, *rest, [True] * 3), expected, strict=True)
            )
    spread = torch.full((1, 1, 1, 1), 1.5).expand_as(x)
    assert all(
        same(a, b)
        for a, b in zip(
            OPS.group_norm_backward(spread, x, *rest, [True] * 3),
            OPS.group_norm_backward(spread.contiguous(), x, *rest, [True] * 3), strict=True,
        )
    )  # fmt: skip


def test_no_weight_with_gradients_of_parameters():
    dy, x, *_ = make(dtype=torch.bfloat16)
    _, mean, rstd = OPS.group_norm(x, 3)
    _, dgamma, dbeta = OPS.group_norm_backward(dy, x, mean, rstd, None, None, [True] * 3)
    assert dgamma.dtype == dbeta.dtype == torch.float32


def test_large_mean():
    x = 1e4 + 2 * torch.rand(2, 32, 32, 32)
    dy, weight = 3 + torch.rand_like(x), torch.rand(32)
    _, mean, rstd = OPS.group_norm(x, 8, weight, None)
    results = OPS.group_norm_backward(dy, x, mean, rstd, weight, None, [True] * 3)
    truth = reference.group_norm_backward(*(t.numpy() for t in (dy, x, mean, rstd, weight)))
    for result, expected in zip(results, truth, strict=True):
        assert np.abs(result.numpy() - expected).max() <= 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize("shape", [(0, 6, 4), (2, 6, 0), (0, 6, 4, 5)])
def test_nothing_in_nothing_out(shape):
    x = torch.randn(shape, requires_grad=True)
    module = gt.GroupNorm(3, 6)
    y = module(x)
    assert y.shape == shape
    y.sum().backward()
    assert x.grad.shape == shape
    assert not module.weight.grad.any()
    assert not module.bias.grad.any()


def test_one_element_a_group():
    x = torch.randn(3, 8, 1, 1, requires_grad=True)
    gt.group_norm(x, 8).backward(torch.randn(3, 8, 1, 1))
    assert not x.grad.any()


# ---- threads ----


def test_threads_decide_no_bit():
    arguments = make((4, 64, 32, 32), 8)
    before = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(OPS.group_norm_backward(*arguments, [True] * 3))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(same(a, b) for a, b in zip(results[0], other, strict=True))


def test_a_sample_is_the_same_in_any_batch():
    dy, x, mean, rstd, weight, bias = make((8, 16, 16, 16), 4)
    full, *_ = OPS.group_norm_backward(dy, x, mean, rstd, weight, bias, [True] * 3)
    for n in range(8):
        part = slice(n, n + 1)
        alone, *_ = OPS.group_norm_backward(dy[part], x[part], mean[part], rstd[part], weight, bias, [True] * 3)
        assert same(alone, full[part])


def test_cases_of_the_table():
    for case in cases.SMALL:
        made = cases.make(case, "float32")
        x, dy, gamma, mean, rstd = (torch.from_numpy(a) for a in made)
        results = OPS.group_norm_backward(dy, x, mean, rstd, gamma, None, [True] * 3)
        expected = groupnorm.group_norm_backward(made.dy, made.x, made.mean, made.rstd, made.gamma)
        assert all(np.array_equal(a.numpy(), b, equal_nan=True) for a, b in zip(results, expected, strict=True))

"""group_norm under torch.func and in forward mode, against PyTorch's own, in float64."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: `make test` installs it")
import torch.autograd.forward_ad as forward_ad  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap  # noqa: E402

import groupnorm.torch as gt  # noqa: E402

pytestmark = pytest.mark.usefixtures("each_function")

ACTIVATIONS = (None, "silu")


def pair(activation):
    """Ours and PyTorch's."""

    def theirs(x, weight, bias):
        y = F.group_norm(x, 2, weight, bias)
        return y if activation is None else F.silu(y)

    return lambda x, weight, bias: gt.group_norm(x, 2, weight, bias, activation=activation), theirs


def operands(dtype=torch.float64, shape=(2, 4, 3)):
    generator = torch.Generator().manual_seed(3)
    x, direction = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    weight, bias = (torch.randn(shape[1], generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    return x, weight, bias, direction


def loss(f, direction):
    return lambda *tensors: (f(*tensors) * direction).sin().sum()


TRANSFORMS = {
    "grad": lambda f, x, w, b, d: grad(loss(f, d), (0, 1, 2))(x, w, b),
    "vjp": lambda f, x, w, b, d: vjp(f, x, w, b)[1](d),
    "jvp": lambda f, x, w, b, d: jvp(f, (x, w, b), (d, w, w)),
    "jvp of the input alone": lambda f, x, w, b, d: jvp(lambda t: f(t, w, b), (x,), (d,)),
    "jvp of the weight alone": lambda f, x, w, b, d: jvp(lambda t: f(x, t, b), (w,), (w,)),
    "jacrev": lambda f, x, w, b, d: jacrev(f, (0, 1, 2))(x, w, b),
    "jacfwd": lambda f, x, w, b, d: jacfwd(f, (0, 1, 2))(x, w, b),
    "hessian": lambda f, x, w, b, d: hessian(loss(f, d), (0, 1))(x, w, b),
    "reverse of reverse": lambda f, x, w, b, d: jacrev(jacrev(loss(f, d)))(x, w, b),
    "reverse of forward": lambda f, x, w, b, d: jacrev(jacfwd(loss(f, d)))(x, w, b),
    "forward of forward": lambda f, x, w, b, d: jacfwd(jacfwd(loss(f, d)))(x, w, b),
    "gradients of samples": lambda f, x, w, b, d: vmap(
        grad(lambda t: (f(t[None], w, b) * d[:1]).sin().sum())
    )(x),
    "gradient of a vmap": lambda f, x, w, b, d: grad(
        lambda t: vmap(lambda u: f(u, t, b))(torch.stack([x, d])).sin().sum()
    )(w),
    "no parameters": lambda f, x, w, b, d: grad(lambda t: loss(f, d)(t, None, None))(x),
    "weight alone": lambda f, x, w, b, d: jacfwd(jacrev(lambda t: loss(f, d)(t, w, None)))(x),
}  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms(transform, activation):
    ours, theirs = pair(activation)
    leaves = torch.utils._pytree.tree_leaves
    got = leaves(TRANSFORMS[transform](ours, *operands()))
    want = leaves(TRANSFORMS[transform](theirs, *operands()))
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_dual_tensors(activation):
    ours, theirs = pair(activation)
    x, weight, bias, direction = operands()
    want = jvp(lambda t: theirs(t, weight, bias), (x,), (direction,))[1]
    with forward_ad.dual_level():
        result = forward_ad.unpack_dual(ours(forward_ad.make_dual(x, direction), weight, bias))
        torch.testing.assert_close(result.tangent, want)
        assert torch.equal(result.primal, ours(x, weight, bias))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradcheck_in_forward_mode(activation):
    ours, _ = pair(activation)
    tensors = tuple(t.requires_grad_() for t in operands()[:3])
    assert torch.autograd.gradcheck(ours, tensors, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(ours, tensors, check_fwd_over_rev=True)


def test_bits_of_a_gradient_are_those_of_backward():
    ours, _ = pair(None)
    x, weight, bias, direction = operands(torch.float32, (2, 8, 5, 5))
    leaf = x.clone().requires_grad_()
    (ours(leaf, weight, bias) * direction).sum().backward()
    assert torch.equal(grad(lambda t: (ours(t, weight, bias) * direction).sum())(x), leaf.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float32_parameters_beside_16_bits(dtype):
    x, weight, bias, direction = operands(torch.float32)
    truth = jvp(lambda t: F.group_norm(t, 2, weight, bias), (x.to(dtype).float(),), (direction.to(dtype).float(),))[1]
    value, tangent = jvp(lambda t: gt.group_norm(t, 2, weight, bias), (x.to(dtype),), (direction.to(dtype),))
    assert value.dtype == tangent.dtype == dtype
    torch.testing.assert_close(tangent.float(), truth, rtol=2 * torch.finfo(dtype).eps, atol=1e-2)

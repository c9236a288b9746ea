"""PyTorch's own samples for its group_norm (OpInfo), through ours: eager, compiled, gradients, second gradients."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: `make test` installs it")
pytest.importorskip("expecttest", reason="PyTorch's samples need expecttest: `make test` installs it")
import groupnorm.torch as gt  # noqa: E402

pytestmark = pytest.mark.usefixtures("each_function")

common = pytest.importorskip("torch.testing._internal.common_methods_invocations")
OPERATOR = next(op for op in common.op_db if op.name == "nn.functional.group_norm")
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def samples(dtype, requires_grad=False):
    found = list(OPERATOR.sample_inputs("cpu", dtype, requires_grad=requires_grad))
    found += list(OPERATOR.reference_inputs("cpu", dtype, requires_grad=requires_grad))
    return [sample for sample in found if sample.input.numel()]


def test_there_are_samples():
    assert len(samples(torch.float32)) >= 10


@pytest.mark.parametrize("dtype", DTYPES)
def test_samples(dtype):
    for sample in samples(dtype):
        want = OPERATOR(sample.input, *sample.args, **sample.kwargs)
        got = gt.group_norm(sample.input, *sample.args, **sample.kwargs)
        assert got.dtype == want.dtype
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)


def test_gradients_of_samples():
    for sample in samples(torch.float64, requires_grad=True):
        leaves = [t for t in (sample.input, *sample.args, *sample.kwargs.values()) if torch.is_tensor(t)]
        leaves = [leaf for leaf in leaves if leaf.requires_grad]
        results = []
        for function in (gt.group_norm, OPERATOR):
            y = function(sample.input, *sample.args, **sample.kwargs)
            first = torch.autograd.grad(y.sin().sum(), leaves, create_graph=True)
            second = torch.autograd.grad(sum(each.sin().sum() for each in first), leaves)
            results.append((*first, *second))
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_compiled_samples_have_the_bits_of_eager():
    torch._dynamo.reset()
    compiled = torch.compile(gt.group_norm, fullgraph=True, backend="aot_eager")
    for sample in samples(torch.float32)[:8]:
        got = compiled(sample.input, *sample.args, **sample.kwargs)
        assert torch.equal(got, gt.group_norm(sample.input, *sample.args, **sample.kwargs))


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_errors_of_samples(dtype):
    """What PyTorch's own refuses, but for one element a group."""
    for error in OPERATOR.error_inputs("cpu") if OPERATOR.error_inputs_func else ():
        sample = error.sample_input
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            gt.group_norm(sample.input.to(dtype), *sample.args, **sample.kwargs)

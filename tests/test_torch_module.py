"""groupnorm.torch.GroupNorm in the place of torch.nn.GroupNorm."""

import copy
import io
import os
import pickle
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: `make test` installs it")
import groupnorm.torch as gt  # noqa: E402

pytestmark = pytest.mark.usefixtures("each_function")

nn = torch.nn


def both(*args, **kwargs):
    """Ours and PyTorch's, with the same parameters."""
    ours, theirs = gt.GroupNorm(*args, **kwargs), nn.GroupNorm(*args, **kwargs)
    with torch.no_grad():
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            b.copy_(a.normal_())
    return ours, theirs


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"bias": False}, {"eps": 0.1}, {"dtype": torch.float64}])
def test_it_is_what_it_replaces(options):
    ours, theirs = both(2, 16, **options)
    assert isinstance(ours, nn.GroupNorm)
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    for shape in ((2, 16), (2, 16, 5), (2, 16, 4, 5), (2, 16, 2, 3, 4)):
        x = torch.randn(shape, dtype=options.get("dtype"))
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        ya, yb = ours(a), theirs(b)
        torch.testing.assert_close(ya, yb)
        dy = torch.randn_like(x)
        ya.backward(dy)
        yb.backward(dy)
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4)


def test_silu_is_fused():
    module = gt.GroupNorm(3, 6, activation="silu")
    assert repr(module) == f"{repr(nn.GroupNorm(3, 6))[:-1]}, activation='silu')"
    plain = nn.Sequential(nn.GroupNorm(3, 6), nn.SiLU())
    plain[0].load_state_dict(module.state_dict())
    x = torch.randn(2, 6, 4, 5)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        saved = []
        y = module(a)
    assert sum(t.numel() for t in saved if t.numel() >= x.numel()) == x.numel()  # x, and no activation beside it
    torch.testing.assert_close(y, plain(b))
    dy = torch.randn_like(x)
    y.backward(dy)
    plain(b).backward(dy)
    torch.testing.assert_close(a.grad, b.grad)
    torch.testing.assert_close(module.weight.grad, plain[0].weight.grad)
    torch.testing.assert_close(module.bias.grad, plain[0].bias.grad)


@pytest.mark.parametrize("activation", [None, "silu"])
def test_copies_and_pickles(activation):
    module = gt.GroupNorm(3, 6, eps=0.1, activation=activation)
    x = torch.randn(2, 6, 4)
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    for other in (
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(buffer, weights_only=False),
    ):
        assert repr(other) == repr(module)
        assert torch.equal(other(x), module(x))


def test_without_memory_and_to():
    module = gt.GroupNorm(3, 6, device="meta")
    y = module(torch.empty(2, 6, 4, device="meta"))
    assert y.device.type == "meta"
    assert y.shape == (2, 6, 4)
    module = module.to_empty(device="cpu")
    module.reset_parameters()
    assert module(torch.randn(2, 6, 4)).isfinite().all()
    assert gt.GroupNorm(3, 6).double()(torch.randn(2, 6, 4).double()).dtype == torch.float64


class _Own(nn.GroupNorm):
    def forward(self, x):
        return super().forward(x) + 1


def test_replacing_the_modules_of_a_model():
    norm = nn.GroupNorm(2, 4)
    model = nn.Sequential(
        norm, nn.Conv2d(4, 6, 1), nn.ModuleDict({"a": nn.GroupNorm(3, 6, affine=False), "b": _Own(2, 6)})
    )
    calls = []
    norm.register_forward_hook(lambda *_: calls.append(1))
    norm.eval()
    weight = norm.weight
    before = repr(model)
    replaced = gt.replace_group_norm(model)
    assert replaced == gt.Replaced(["0", "2.a"], ["2.b"])
    assert type(model[0]) is gt.GroupNorm
    assert model[0] is norm
    assert norm.weight is weight
    assert not norm.training
    assert repr(model) == before
    norm(torch.randn(2, 4, 3))
    assert calls == [1]
    assert gt.replace_group_norm(model) == gt.Replaced([], ["2.b"])
    alone = nn.GroupNorm(2, 4)
    assert gt.replace_group_norm(alone).changed == [""]


def test_gradients_that_are_not_needed():
    x = torch.randn(2, 6, 4)
    module = gt.GroupNorm(3, 6)
    module.requires_grad_(False)
    a = x.clone().requires_grad_()
    module(a).sum().backward()
    assert a.grad is not None
    assert module.weight.grad is None
    module.bias.requires_grad_(True)
    module(x).sum().backward()
    assert module.bias.grad is not None
    assert module.weight.grad is None
    with torch.no_grad():
        assert not module(x).requires_grad


def test_autocast_keeps_the_dtype_of_its_input():
    module = nn.Sequential(nn.Conv2d(3, 6, 1), gt.GroupNorm(3, 6))
    with torch.autocast("cpu", torch.bfloat16):
        y = module(torch.randn(2, 3, 4, 4))
    assert y.dtype == torch.bfloat16
    y.float().square().sum().backward()
    assert module[1].weight.grad.dtype == torch.float32


def test_checkpointing():
    from torch.utils.checkpoint import checkpoint

    module = gt.GroupNorm(3, 6, activation="silu")
    x = torch.randn(2, 6, 4)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    module(a).square().sum().backward()
    checkpoint(module, b, use_reentrant=False).square().sum().backward()
    assert torch.equal(a.grad, b.grad)


class _Data(torch.utils.data.Dataset):
    def __init__(self):
        self.module = gt.GroupNorm(4, 64)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        with torch.no_grad():
            return self.module(torch.full((2, 64, 32, 32), float(index)))


def test_workers_that_are_forked_after_a_parallel_call():
    data = _Data()
    data[0]
    loader = torch.utils.data.DataLoader(data, num_workers=2, multiprocessing_context="fork", timeout=60)
    assert len(list(loader)) == 4


def test_import_without_torch_names_the_extra():
    code = "import sys; sys.modules['torch'] = None; import groupnorm; groupnorm.group_norm\nimport groupnorm.torch"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**os.environ}
    )
    assert result.returncode == 1
    assert (
        "ImportError: groupnorm.torch: PyTorch is not installed; accepted with the extra groupnorm[torch]"
        in result.stderr
    )


# ---- arguments of other types ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, 4), "input: None; accepted: a torch.Tensor"),
        (([1.0], 4), "input: list; accepted: a torch.Tensor"),
        ((torch.zeros(2, 4, 3).numpy(), 4), "input: ndarray; accepted: a torch.Tensor"),
        ((torch.zeros(2, 4, 3), "a"), "num_groups: 'a'; accepted: an int"),
        ((torch.zeros(2, 4, 3), 2.0), "num_groups: 2.0; accepted: an int"),
        ((torch.zeros(2, 4, 3), 2, 1.0), "weight: float; accepted: a torch.Tensor or None"),
        ((torch.zeros(2, 4, 3), 2, None, "b"), "bias: str; accepted: a torch.Tensor or None"),
        ((torch.zeros(2, 4, 3), 2, None, None, None), "eps: None; accepted: a float"),
        ((torch.zeros(2, 4, 3), 2, None, None, "a"), "eps: 'a'; accepted: a float"),
    ],
)
def test_errors_name_arguments_of_other_types(arguments, message):
    with pytest.raises(TypeError) as caught:
        gt.group_norm(*arguments)
    assert str(caught.value) == message


def test_modes_see_the_function():
    from torch.overrides import TorchFunctionMode

    class Seen(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    seen = []
    with Seen():
        gt.group_norm(torch.zeros(2, 4, 3), 2, torch.ones(4))
    assert any("groupnorm" in name for name in seen)

"""What test_torch_sharded.py runs in several processes: group_norm on DTensors against one process.

    python sharded_worker.py RANK WORLD_SIZE STORE_FILE RESULTS_FILE

Rank 0 writes a JSON object: the name of each check, and "" or what was wrong.
"""

import itertools
import json
import os
import sys
import traceback

os.environ["GLOO_SOCKET_IFNAME"] = "lo"

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import groupnorm.torch as gt

RANK, WORLD = int(sys.argv[1]), int(sys.argv[2])
CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function


def same(name, got, want):
    assert torch.equal(got, want), f"{name}: other bits, by up to {(got - want).abs().max()}"


def near(name, got, want, bound):
    if want.numel() == 0:
        return
    scale = want.abs().max().item() or 1.0
    error = (got - want).abs().max().item() / scale
    assert error <= bound, f"{name}: {error:.3g} of the largest; at most {bound}"


def make(shape, dtype, layout, parameter=None):
    generator = torch.Generator().manual_seed(sum(shape))
    x, dy = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    x = x * 3 + 1
    if layout == "channels-last":
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    weight, bias = (torch.randn(shape[1], generator=generator).to(parameter or dtype) for _ in range(2))
    return x, dy, weight, bias


def gradients(x, dy, weight, bias, groups, activation, mesh=None, placements=None):
    """(y, dx, dgamma, dbeta), whole."""
    tensors = [x, weight, bias]
    if mesh is not None:
        whole = [Replicate()] * mesh.ndim
        tensors = [distribute_tensor(x, mesh, placements)] + [distribute_tensor(t, mesh, whole) for t in (weight, bias)]
        dy = distribute_tensor(dy, mesh, placements)
    tensors = [t.detach().requires_grad_() for t in tensors]
    y = gt.group_norm(tensors[0], groups, *tensors[1:], activation=activation)
    y.backward(dy)
    results = [y, *(t.grad for t in tensors)]
    if mesh is not None:
        assert y.shape == x.shape
        results = [result.full_tensor() for result in results]
    return [result.detach() for result in results]


SHAPES = [((5, 12, 6, 7), 6), ((2, 8, 9), 4), ((3, 8, 5, 3, 2), 8), ((1, 4, 33, 70), 2), ((0, 4, 3), 2), ((3, 4, 1), 4)]
NAMES = ("y", "dx", "dgamma", "dbeta")


def agree(mesh, placements, dtypes, exact):
    for (shape, groups), (dtype, parameter), layout, activation in itertools.product(
        SHAPES, dtypes, ("contiguous", "channels-last"), (None, "silu")
    ):
        if any(isinstance(p, Shard) and p.dim >= len(shape) for p in placements):
            continue
        x, dy, weight, bias = make(shape, dtype, layout, parameter)
        want = gradients(x, dy, weight, bias, groups, activation)
        got = gradients(x, dy, weight, bias, groups, activation, mesh, placements)
        bound = {torch.float64: 1e-13, torch.float32: 1e-6}.get(dtype, 2 * torch.finfo(dtype).eps)
        for name, a, b in zip(NAMES, got, want, strict=True):
            what = f"{name} of {shape}, {dtype}, {layout}, {activation}, {placements}"
            assert a.dtype == b.dtype, what
            if exact:
                same(what, a, b)
            else:
                near(what, a, b, bound)


ALL = [
    (torch.float32, None), (torch.float64, None), (torch.bfloat16, torch.float32), (torch.float16, torch.float16)
]  # fmt: skip


@check
def batch_and_channels_have_the_bits_of_one_process():
    mesh = init_device_mesh("cpu", (WORLD,))
    for placement in (Shard(0), Shard(1), Replicate()):
        agree(mesh, [placement], ALL, exact=True)


@check
def positions_within_the_bound():
    mesh = init_device_mesh("cpu", (WORLD,))
    for dim in (2, 3):
        agree(mesh, [Shard(dim)], ALL, exact=False)


@check
def meshes_of_two_dimensions():
    if WORLD < 4:
        return
    mesh = init_device_mesh("cpu", (2, WORLD // 2))
    for placements in ([Shard(0), Shard(0)], [Shard(0), Shard(1)], [Shard(1), Shard(0)], [Replicate(), Shard(0)]):
        agree(mesh, placements, ALL[:1], exact=True)
    for placements in ([Shard(0), Shard(2)], [Shard(2), Shard(3)], [Shard(2), Shard(1)], [Shard(2), Shard(2)]):
        agree(mesh, placements, ALL[:2], exact=False)


@check
def a_sum_becomes_whole_first():
    mesh = init_device_mesh("cpu", (WORLD,))
    x, _, weight, bias = make((2, 4, 6), torch.float64, "contiguous")
    part = DTensor.from_local(x / WORLD, mesh, [Partial()])
    whole = [distribute_tensor(t, mesh, [Replicate()]) for t in (weight, bias)]
    near("y", gt.group_norm(part, 2, *whole).full_tensor(), F.group_norm(x, 2, weight, bias), 1e-13)


@check
def a_large_mean_costs_positions_nothing():
    mesh = init_device_mesh("cpu", (WORLD,))
    x, dy, weight, bias = make((2, 4, 64), torch.float32, "contiguous")
    x = x + 1e4
    got = gradients(x, dy, weight, bias, 2, None, mesh, [Shard(2)])
    want = gradients(x, dy, weight, bias, 2, None)
    for name, a, b in zip(NAMES, got, want, strict=True):
        near(name, a, b, 1e-6)


@check
def mistakes_are_named():
    mesh = init_device_mesh("cpu", (WORLD,))
    x, _, weight, _ = make((2, 4, 6), torch.float32, "contiguous")
    sharded = distribute_tensor(x, mesh, [Shard(0)])
    for call, kind, words in (
        (lambda: gt.group_norm(sharded, 2, weight), TypeError, "weight: a plain tensor beside DTensors"),
        (lambda: gt.group_norm(x, 2, distribute_tensor(weight, mesh, [Replicate()])), TypeError, "input: a plain"),
        (lambda: gt.group_norm(sharded, 3), ValueError, "num_groups = 3 with C = 4"),
        (lambda: _second_derivative(sharded), NotImplementedError, "a second derivative of sharded tensors"),
    ):
        assert words in _message(call, kind)
    if WORLD == 2:  # with more, some ranks have by chance what DTensor would have given them
        part = DTensor.from_local(
            torch.zeros(2 * RANK + 1, 4, 6), mesh, [Shard(0)], shape=torch.Size((4, 4, 6)), stride=(24, 6, 1)
        )
        words = f"input: a part of shape ({2 * RANK + 1}, 4, 6) here; accepted: (2, 4, 6)"
        assert words in _message(lambda: gt.group_norm(part, 2), ValueError)


def _second_derivative(x):
    x = x.detach().requires_grad_()
    (first,) = torch.autograd.grad(gt.group_norm(x, 2).sum(), x, create_graph=True)
    first.sum().backward()


def _message(call, kind):
    try:
        call()
    except kind as error:
        return str(error)
    return "no error"


def _network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), gt.GroupNorm(4, 8, activation="silu"), nn.Flatten(), nn.Linear(8 * 36, 5)
    )


def _train(model, x, target, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def _data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8 * WORLD, 3, 6, 6, generator=generator), torch.arange(8 * WORLD) % 5


@check
def data_parallel_trains_as_one_process():
    x, target = _data()
    alone = _network()
    _train(alone, x, target)
    together = _network()
    mine = slice(8 * RANK, 8 * RANK + 8)
    _train(nn.parallel.DistributedDataParallel(together), x[mine], target[mine])
    for (name, got), want in zip(together.named_parameters(), alone.parameters(), strict=True):
        near(name, got.detach(), want.detach(), 1e-5)


@check
def fully_sharded_trains_as_one_process():
    from torch.distributed.fsdp import fully_shard

    x, target = _data()
    alone = _network()
    _train(alone, x, target)
    together = _network()
    for module in together:
        if any(True for _ in module.parameters()):
            fully_shard(module)
    fully_shard(together)
    mine = slice(8 * RANK, 8 * RANK + 8)
    _train(together, x[mine], target[mine])
    for (name, got), want in zip(together.named_parameters(), alone.parameters(), strict=True):
        near(name, got.detach().full_tensor(), want.detach(), 1e-5)


@check
def a_module_is_distributed():
    from torch.distributed.tensor import distribute_module

    mesh = init_device_mesh("cpu", (WORLD,))
    x, dy, _, _ = make((4, 8, 6, 6), torch.float32, "contiguous")
    alone, together = gt.GroupNorm(4, 8), distribute_module(gt.GroupNorm(4, 8), mesh)
    alone(x).backward(dy)
    together(distribute_tensor(x, mesh, [Shard(0)])).backward(distribute_tensor(dy, mesh, [Shard(0)]))
    same("weight", together.weight.grad.full_tensor(), alone.weight.grad)
    same("bias", together.bias.grad.full_tensor(), alone.bias.grad)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=RANK, world_size=WORLD)
    results = {}
    for name, function in CHECKS.items():
        try:
            function()
            wrong = ""
        except Exception:
            wrong = f"rank {RANK}: {traceback.format_exc()}"
        everyone = [None] * WORLD
        dist.all_gather_object(everyone, wrong)
        results[name] = "".join(everyone)
    if RANK == 0:
        with open(sys.argv[4], "w") as file:
            json.dump(results, file)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # PyTorch may wait forever for the threads of a group that is destroyed with the GIL held


if __name__ == "__main__":
    main()

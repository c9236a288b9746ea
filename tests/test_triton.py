"""The Triton kernels against float64 through Triton's interpreter: the bounds of the CPU, exact data, masks, layouts.

The interpreter takes some milliseconds a program, so layers of networks are cut to two samples and two groups, with
their channels a group, and to 4096 positions: what a program does is what it does in the whole layer.
"""

import math

import numpy as np
import pytest

from conftest import BFLOAT16, LOW_DTYPES
from groupnorm import cases, reference, tolerance
from groupnorm.cases import FAMILIES, LAYERS, ORDINARY, SMALL, Case
from triton_interpreted import (  # noqa: F401
    array,
    backward,
    channels_last,
    gt,
    interpreter,
    tensor,
    torch,
)

FLOAT32 = np.dtype(np.float32)
NAMES = ("dx", "dgamma", "dbeta")
# Plans that the table has for shapes too large to interpret: loops over channels, positions and chunks.
SPLIT = gt.Plan("split", 1, 4, 128, 2, 4)
CACHED = gt.Plan("cached", 1, 4, 128, 2, 4)
NONZERO = [case for case in SMALL if case.name not in ("one_element", "many_samples")]
FEW = [case for case in SMALL if case.name in ("odd", "rank2", "rank5")]


def shrunk(case):
    n, channels, *rest = case.shape
    d = channels // case.num_groups
    while math.prod(rest) > 4096:
        rest[rest.index(max(rest))] //= 2
    groups = min(case.num_groups, 2)
    return Case(case.name, (min(n, 2), d * groups, *rest), groups)


def check(result, truth, bounds):
    for name, got in zip(NAMES, result, strict=True):
        error = np.abs(array(got) - getattr(truth, name))
        assert (error <= getattr(bounds, name)).all(), name


def truth_of(inputs, **options):
    return reference.group_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma, **options)


def bounds_of(inputs, truth):
    return tolerance.backward_bounds(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma, truth)


def relative(result, truth):
    error, largest = np.abs(array(result) - truth).max(), np.abs(truth).max()
    return error / largest if largest else 0.0 if error == 0 else np.inf


@pytest.mark.parametrize(
    ("dtype", "family"),
    [(FLOAT32, family) for family in FAMILIES]
    + [(dtype, family) for dtype in LOW_DTYPES[1:] for family in ("centred", "offset_10000", "pixels")],
)
def test_backward_keeps_derived_bounds(dtype, family):
    for case in SMALL:
        if case.name == "many_samples" and family != "centred":
            continue  # a second each
        inputs = cases.make(case, dtype, family=family)
        truth = truth_of(inputs)
        bounds = bounds_of(inputs, truth)
        check(backward(inputs), truth, bounds)
        if len(case.shape) > 2 and case.name != "many_samples":
            check(backward(inputs, last=True), truth, bounds)


@pytest.mark.parametrize("plan", [SPLIT, CACHED], ids=["split", "cached"])
@pytest.mark.parametrize("family", ["centred", "offset_10000"])
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
def test_other_plans_keep_derived_bounds(dtype, family, plan):
    for case in FEW:
        inputs = cases.make(case, dtype, family=family)
        truth = truth_of(inputs)
        bounds = bounds_of(inputs, truth)
        check(backward(inputs, plan=plan), truth, bounds)
        if case.name == "odd":
            check(backward(inputs, plan=plan, last=True), truth, bounds)


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels-last"])
@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.name)
def test_layers_keep_derived_bounds(case, last):
    inputs = cases.make(shrunk(case), FLOAT32)
    truth = truth_of(inputs)
    check(backward(inputs, last=last), truth, bounds_of(inputs, truth))


@pytest.mark.parametrize("family", ORDINARY)
def test_float32_keeps_the_contract(family):
    for case in NONZERO:
        inputs = cases.make(case, FLOAT32, family=family)
        truth = truth_of(inputs)
        for name, got in zip(NAMES, backward(inputs), strict=True):
            assert relative(got, getattr(truth, name)) <= tolerance.CONTRACT[name], (case.name, name)


@pytest.mark.parametrize("chip", ["cuda:90", "npu:Ascend910B3"])
@pytest.mark.parametrize("family", ["centred", "dy_offset", "pixels"])
def test_dx_of_groups_of_few_elements_keeps_the_contract(family, chip):
    for shape, groups in [
        ((5, 12), 3),
        ((5, 6, 2), 3),
        ((5, 3, 4), 3),
        ((5, 3, 8), 3),
        ((4, 2, 64), 2),
        ((4, 96, 3), 2),
    ]:
        for seed in (1, 2):
            inputs = cases.make(Case("few", shape, groups), FLOAT32, family=family, seed=seed)
            sizes = (*shape[:2], math.prod(shape[2:]), groups, "float32", "float32", None, "float32")
            plan = gt.choose(gt.Problem("backward", *sizes), gt.CHIPS[chip])
            dx, _, _ = backward(inputs, plan=plan, output_mask=(True, False, False))
            assert relative(dx, truth_of(inputs).dx) <= tolerance.CONTRACT["dx"], (shape, seed)


@pytest.mark.parametrize("plan", [None, SPLIT, CACHED], ids=["resident", "split", "cached"])
@pytest.mark.parametrize("dtype", LOW_DTYPES, ids=str)
def test_dx_of_a_single_element_is_exactly_0(dtype, plan):
    inputs = cases.make(Case("one", (3, 8, 1, 1), 8), dtype, family="dy_offset")
    inputs = inputs._replace(mean=inputs.x[..., 0, 0].astype(inputs.mean.dtype))
    assert (backward(inputs, plan=plan)[0] == 0).all()


@pytest.mark.parametrize("family", ["centred", "offset_10000", "dy_offset", "pixels", "sparse"])
def test_a_long_group_keeps_the_contract(family):
    inputs = cases.make(Case("long", (1, 8, 32, 64, 64), 2), FLOAT32, family=family)  # M = 524288
    truth = truth_of(inputs)
    for name, got in zip(NAMES, backward(inputs), strict=True):
        assert relative(got, getattr(truth, name)) <= tolerance.CONTRACT[name], name


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_16_bit_dx_is_the_rounded_truth(dtype):
    inputs = cases.make(Case("sample", (2, 32, 32, 32), 8), dtype, family="offset_100")
    truth = truth_of(inputs)
    dx, dgamma, _ = backward(inputs)
    assert dgamma.dtype == torch.float32
    assert relative(dgamma, truth.dgamma) <= tolerance.CONTRACT["dgamma"]
    assert (array(dx) == tolerance.round_to(truth.dx, dtype)).mean() >= tolerance.CONTRACT_ROUNDED_SHARE
    one_ulp = tolerance.ulp(truth.dx, dtype)
    assert (np.abs(array(dx) - truth.dx) <= np.maximum(one_ulp, 3e-7 * np.abs(truth.dx).max())).all()


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels-last"])
@pytest.mark.parametrize("dtype", LOW_DTYPES, ids=str)
def test_bits_on_exact_data_are_those_of_the_truth_however_it_is_split(dtype, last):
    inputs = cases.make_exact(Case("exact", (2, 8, 16, 16), 2), dtype)
    truth = truth_of(inputs)
    plans = [
        None,
        *(gt.Plan("split", 1, d, length, tiles, 4) for d, length, tiles in ((8, 16, 1), (2, 64, 2), (4, 8, 8))),
    ]
    for plan in (*plans, CACHED):
        for name, got in zip(NAMES, backward(inputs, last=last, plan=plan), strict=True):
            expected = tolerance.round_to(getattr(truth, name), dtype)
            assert np.array_equal(array(got), expected), (plan, name)


@pytest.mark.parametrize("shape", [(2, 12, 19, 21), (2, 60, 5, 7)])
def test_a_group_has_the_same_bits_split_and_in_one_program(shape):
    inputs = cases.make(Case("odd", shape, 3), FLOAT32, family="dy_offset")
    for block_d in (1, 4, 16):
        plans = (plan._replace(block_d=block_d, block_l=32) for plan in (SPLIT, CACHED))
        split, cached = (backward(inputs, plan=plan)[0] for plan in plans)
        assert torch.equal(split, cached)


def test_the_sum_of_a_group_is_exact_in_any_order():
    import triton
    import triton.language as tl

    global exact_sum  # a kernel finds functions among the globals
    from groupnorm.triton.arithmetic import exact_sum

    @triton.jit
    def sum_of(values, rests, out, COUNT: tl.constexpr):
        at = tl.arange(0, COUNT)
        high, low = exact_sum(tl.load(values + at), tl.load(rests + at), 0, COUNT)
        tl.store(out, high)
        tl.store(out + 1, low)

    generator = torch.Generator().manual_seed(1)
    for count in (1, 4, 32, 256):
        values = torch.randn(count, generator=generator) * torch.exp(4 * torch.randn(count, generator=generator))
        rests = values * 2.0**-25
        found = []
        for order in (torch.arange(count), torch.randperm(count, generator=generator), values.argsort()):
            out = torch.zeros(2)
            sum_of[(1,)](values[order].contiguous(), rests[order].contiguous(), out, count)
            found.append(out)
        assert all(torch.equal(out, found[0]) for out in found)
        total = (values.double() + rests.double()).sum()
        assert (found[0].double().sum() - total).abs() <= count * 2.0**-28 * values.abs().max()


@pytest.mark.parametrize("plan", [None, SPLIT, CACHED], ids=["resident", "split", "cached"])
def test_a_group_has_the_same_bits_in_every_batch(plan):
    inputs = cases.make(Case("batch", (4, 6, 9, 9), 3), FLOAT32)
    whole = backward(inputs, plan=plan)[0]
    for n in range(4):
        one = inputs._replace(**{name: getattr(inputs, name)[n : n + 1] for name in ("x", "dy", "mean", "rstd")})
        assert torch.equal(backward(one, plan=plan)[0], whole[n : n + 1])


@pytest.mark.parametrize("plan", [None, SPLIT, CACHED], ids=["resident", "split", "cached"])
@pytest.mark.parametrize("samples", [1, 3])
def test_a_mask_leaves_the_rest_as_it_is(samples, plan):
    inputs = cases.make(Case("mask", (samples, 8, 5, 7), 2), FLOAT32)
    full = backward(inputs, plan=plan)
    for mask in [(True, False, False), (False, True, True), (True, False, True), (False, True, False), (False,) * 3]:
        for got, all_of_it, wanted in zip(backward(inputs, output_mask=mask, plan=plan), full, mask, strict=True):
            assert (got is None) if not wanted else torch.equal(got, all_of_it), mask


@pytest.mark.parametrize("plan", [None, SPLIT], ids=["resident", "split"])
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_recenter_restores_the_gradient_of_rounded_statistics(dtype, plan):
    case = Case("rounded", (2, 8, 16, 16), 4)
    inputs = cases.make(case, dtype, family="dy_offset", parameter_dtype=dtype)
    inputs = inputs._replace(x=(reference.to_float64(inputs.x) + 2).astype(dtype))
    mean = reference.group_norm(inputs.x, 4).mean
    inputs = inputs._replace(mean=mean.astype(dtype))
    exact = reference.group_norm_backward(inputs.dy, inputs.x, mean, inputs.rstd, inputs.gamma)
    result = backward(inputs, recenter=True, plan=plan)
    assert relative(result[1], exact.dgamma) <= 2 * tolerance.unit_roundoff(dtype)
    assert relative(backward(inputs, plan=plan)[1], exact.dgamma) > 4 * relative(result[1], exact.dgamma)
    truth = truth_of(inputs, recenter=True)
    for name, got in zip(NAMES, result, strict=True):
        expected = getattr(truth, name)
        bound = tolerance.unit_roundoff(dtype) * np.abs(expected) + 1e-6 * np.abs(expected).max()
        assert (np.abs(array(got) - expected) <= bound).all(), name


@pytest.mark.parametrize("plan", [None, SPLIT, CACHED], ids=["resident", "split", "cached"])
@pytest.mark.parametrize("dtype", LOW_DTYPES, ids=str)
def test_silu_keeps_derived_bounds(dtype, plan):
    for case in (SMALL[1], Case("rank2", (5, 12), 3)):
        for family in ("centred", "offset_100", "large"):
            inputs = cases.make(case, dtype, family=family)
            beta = (3 * cases.uniform((case.shape[1],), 9)).astype(inputs.gamma.dtype)
            truth = truth_of(inputs, activation="swish", beta=beta)
            arguments = (inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma, beta, 1.0)
            bounds = tolerance.swish_backward_bounds(*arguments, truth)
            for last in (False, True):
                check(backward(inputs, beta=tensor(beta), activation="silu", last=last, plan=plan), truth, bounds)


@pytest.mark.parametrize("plan", [None, SPLIT, CACHED], ids=["resident", "split", "cached"])
@pytest.mark.parametrize("dtype", LOW_DTYPES, ids=str)
def test_printed_formula_keeps_derived_bounds(dtype, plan):
    for case in NONZERO if plan is None else NONZERO[:2]:
        for family in ("centred", "offset_10000", "pixels", "large"):
            inputs = cases.grouped(cases.make(case, dtype, family=family))
            arguments = (inputs.x, inputs.dy, inputs.gamma, inputs.mean, inputs.rstd)
            truth = reference.group_normalization_grad(*arguments)
            result = array(gt.group_normalization_grad(*(tensor(a) for a in arguments), plan=plan))
            inside = np.isfinite(tolerance.round_to(truth, dtype))
            bound = tolerance.printed_bound(*arguments, truth)
            assert (np.abs(result - truth)[inside] <= bound[inside]).all(), (case.name, family)


def test_printed_formula_of_the_document():
    x = (np.arange(1024) % 128 / 128).reshape(2, 4, 128).astype(np.float32)
    dy, gamma = np.full_like(x, 0.5), np.ones_like(x)
    stats = (np.zeros((2, 4), np.float32), np.ones((2, 4), np.float32))
    dx = gt.group_normalization_grad(*(tensor(a) for a in (x, dy, gamma, *stats)))
    assert np.allclose(dx[0, 0, [1, 127]], [-0.001938, -0.246109], atol=1e-6)


@pytest.mark.parametrize("plan", [None, SPLIT], ids=["resident", "split"])
@pytest.mark.parametrize("silu", [None, "silu"])
@pytest.mark.parametrize("dtype", LOW_DTYPES, ids=str)
def test_forward_matches_the_reference(dtype, silu, plan):
    for case in FEW:
        for family in ("centred", "offset_10000"):
            inputs = cases.make(case, dtype, family=family)
            beta = cases.uniform((case.shape[1],), 9).astype(inputs.gamma.dtype)
            swish = None if silu is None else "swish"
            truth = reference.group_norm(inputs.x, case.num_groups, inputs.gamma, beta, activation=swish)
            u, size = 2.0**-24, np.abs(reference.to_float64(inputs.x)).max()
            bound = (5 + 2 * tolerance.ROUNDINGS) * u * (np.abs(truth.y).max() + 2)
            bound = bound + tolerance.unit_roundoff(dtype) * np.abs(truth.y)
            for last in (False, True):
                x = channels_last(tensor(inputs.x)) if last else tensor(inputs.x)
                y, mean, rstd = gt.group_norm(
                    x, case.num_groups, tensor(inputs.gamma), tensor(beta), activation=silu, plan=plan
                )
                assert y.stride() == x.stride()
                assert mean.dtype == rstd.dtype == torch.float32
                assert np.abs(array(mean) - truth.mean).max() <= 2 * tolerance.ROUNDINGS * u * size
                assert (np.abs(array(rstd) - truth.rstd) <= 2 * tolerance.ROUNDINGS * u * truth.rstd).all()
                assert (np.abs(array(y) - truth.y) <= bound).all()


def test_forward_statistics_survive_a_large_mean_and_a_first_tile_that_is_unlike_the_rest():
    x = cases.make(Case("offset", (1, 4, 32, 32), 2), FLOAT32, family="offset_10000").x
    x[:, :, :4] = 0
    truth = reference.group_norm(x, 2)
    for plan in (None, SPLIT):
        _, mean, rstd = gt.group_norm(tensor(x), 2, plan=plan)
        assert relative(rstd, truth.rstd) <= 3e-7
        assert relative(mean, truth.mean) <= 2e-7


def test_nan_stays_in_its_group():
    inputs = cases.make(Case("nan", (2, 6, 5, 7), 3), FLOAT32)
    inputs.x[1, 2, 0, 0] = np.nan
    for plan in (None, SPLIT, CACHED):
        dx, dgamma, dbeta = backward(inputs, plan=plan)
        bad = torch.isnan(dx)
        assert bad[1, 2:4].all()
        assert bad.sum() == 2 * 35
        assert torch.isnan(dgamma).nonzero().flatten().tolist() == [2]
        assert torch.isfinite(dbeta).all()

"""The operators on NumPy arrays and on what DLPack passes: check, choose a layout, allocate, run the core."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _core, spec
from .arrays import to_kind_of, to_numpy
from .memory import Output, check_given, element_output, empty, in_layout, overlap, plan_layout
from .spec import CONTIGUOUS, Activation, Array, GroupNormGrads, GroupNormOutputs
from .threads import resolve

_ALL = (True, True, True)


def _address(array: Array | None) -> int:
    return 0 if array is None else _core.address(array)


def _contiguous(array: Array | None) -> Array | None:
    return None if array is None else in_layout(array, CONTIGUOUS)


def _check_apart(names: tuple[str, ...], outputs: Sequence[Any]) -> None:
    """ValueError when two given outputs overlap."""
    given = [i for i, output in enumerate(outputs) if output is not None]
    for i, j in itertools.combinations(given, 2):
        if overlap(outputs[i], outputs[j]):
            raise ValueError(f"out ({names[j]}): overlaps out ({names[i]}); accepted: memory of its own")


def group_norm_backward(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any = None,
    *,
    output_mask: Sequence[bool] = _ALL,
    recenter: bool = False,
    activation: Activation = None,
    swish_scale: float = 1.0,
    beta: Any = None,
    num_threads: int | None = None,
    out: Any = None,
) -> GroupNormGrads[Any]:
    """The gradient of Group Normalization: `GroupNormGrads(dx, dgamma, dbeta)`.

    Formula (docs/math.md, "The gradient"), with xhat = (x - mean) * rstd and dxhat = gamma * dy:
    dx = rstd * (dxhat - mean_g(dxhat) - xhat * mean_g(dxhat * xhat)), dgamma = sum of dy * xhat,
    dbeta = sum of dy, the sums over batch and positions.

    With activation="swish" (docs/math.md, "Swish") dy is the gradient of y = gn * sigmoid(swish_scale * gn), where
    gn = gamma * xhat + beta, and dy * swish'(gn) stands in its place above: swish'(gn) = sig + swish_scale * gn *
    sig * (1 - sig), sig = sigmoid(swish_scale * gn). It is the swish of CANN's aclnnGroupNormSwishGrad.

    Args:
        dy: upstream gradient, x's shape and dtype, any layout.
        x: input, [N, C, *], rank 2 and up, float64, float32, float16 or bfloat16.
        mean: [N, G], x's dtype, or float32 when x is 16-bit. G is the number of groups.
        rstd: [N, G], mean's dtype: 1 / sqrt(variance + eps).
        gamma: [C], x's dtype, or float32 when x is 16-bit; None counts as ones.
        output_mask: which of dx, dgamma and dbeta to compute; the others are None.
        recenter: also subtract the mean of xhat, which is 0 unless `mean` was rounded to few bits. Not
            together with an activation.
        activation: "swish" if the forward had one.
        swish_scale: its scale, finite; 1 is SiLU.
        beta: [C], the beta of the forward, dtypes as for gamma; None counts as zeros. Only with an activation,
            which alone depends on it.
        num_threads: up to so many threads for this call; see `get_num_threads`.
        out: (dx, dgamma, dbeta) to write to, each None to allocate it. dx may be dy or x itself;
            any other overlap is refused.

    Returns:
        dx in x's shape, dtype and layout; dgamma and dbeta [C] in gamma's dtype (mean's without
        gamma). The kind of array that x is. Contiguous and channels-last arrays are read in place,
        others through a copy.

    Raises:
        TypeError: an argument that is no CPU array, or a dtype that is not accepted.
        ValueError: a shape, layout, overlap, mask, activation or number of threads that is not accepted.
    """
    mask = output_mask if output_mask is _ALL else spec.check_output_mask(output_mask)
    threads = resolve(num_threads)
    if activation is None and beta is None and recenter is False and type(swish_scale) is float and swish_scale == 1:
        plain = _core.plain_group_norm_backward(dy, x, mean, rstd, gamma, mask, out, threads)
        if plain is not None:
            return GroupNormGrads(*plain)

    x_, dy_ = to_numpy("x", x), to_numpy("dy", dy)
    mean_, rstd_ = to_numpy("mean", mean), to_numpy("rstd", rstd)
    gamma_ = None if gamma is None else to_numpy("gamma", gamma)
    beta_ = None if beta is None else to_numpy("beta", beta)
    dims, code, gamma_code, beta_code, stats_code = spec.check_backward(dy_, x_, mean_, rstd_, gamma_, beta_)
    recenter = spec.check_flag("recenter", recenter)
    activation_code, scale = spec.check_activation(activation, swish_scale, recenter=recenter)
    if beta is not None and activation is None:
        raise ValueError("beta: an array without an activation; accepted: None (beta only matters with an activation)")

    layout, like = plan_layout(x_)
    parameter = mean_.dtype if gamma_ is None else gamma_.dtype
    given: tuple[Any, ...] = (None, None, None)
    checked: list[Array | None] = [None, None, None]
    if out is not None:
        names = GroupNormGrads._fields
        given = spec.check_out(out, names, mask)
        inputs = (("x", x_), ("dy", dy_), ("mean", mean_), ("rstd", rstd_), ("gamma", gamma_), ("beta", beta_))
        if given[0] is not None:
            order = x_ if like is None else like
            checked[0] = check_given("dx", given[0], x_.shape, x_.dtype, order, inputs, ("x", "dy"))
        for i in (1, 2):
            if given[i] is not None:
                checked[i] = check_given(names[i], given[i], (dims.channels,), parameter, None, inputs)
        if checked[1] is not None or checked[2] is not None:
            _check_apart(names, checked)

    dx = element_output(checked[0], x_, layout, like) if mask[0] else None
    sums = [
        None if not mask[i] else empty((dims.channels,), parameter) if checked[i] is None else checked[i]
        for i in (1, 2)
    ]
    x_, dy_ = in_layout(x_, layout), in_layout(dy_, layout)
    mean_, rstd_ = in_layout(mean_, CONTIGUOUS), in_layout(rstd_, CONTIGUOUS)
    gamma_, beta_ = _contiguous(gamma_), _contiguous(beta_)
    _core.group_norm_backward(
        code, gamma_code, beta_code, stats_code, layout, *dims,
        _core.address(dy_), _core.address(x_), _core.address(mean_), _core.address(rstd_), _address(gamma_),
        _address(beta_), 0 if dx is None else _core.address(dx.buffer), _address(sums[0]), _address(sums[1]),
        recenter, activation_code, scale, threads,
    )  # fmt: skip
    return GroupNormGrads(
        _hand_over(x, given[0], None if dx is None else dx.finish()),
        _hand_over(x, given[1], sums[0]),
        _hand_over(x, given[2], sums[1]),
    )


def _hand_over(like: Any, given: Any, result: Array | None) -> Any:
    """What the caller gets for an output: the array he gave, or the result as the kind that `like` is."""
    if given is not None or result is None:
        return given
    return result if isinstance(like, np.ndarray) else to_kind_of(like, result)


def group_normalization_grad(
    x: Any,
    dy: Any,
    gamma: Any,
    mean: Any,
    rstd: Any,
    *,
    num_threads: int | None = None,
    out: Any = None,
) -> Any:
    """dx of the CANN operator aclnnGroupNormalizationGrad. NOT the gradient unless gamma is 1.

    Formula, as the operator's document prints it (docs/math.md, "The printed formula"), with
    xhat = (x - mean) * rstd, s1 = sum(dy * gamma), s2 = sum(dy * gamma * xhat) over the M elements of
    a group: dx = (rstd / M) * gamma * (M * dy - s1 - xhat * s2). Here gamma multiplies s1 and s2 a
    second time. `formula_gap` tells how far that is from the gradient, `group_norm_backward` is it.

    Args:
        x: input, [N, G, *], rank 3 to 8: grouped already. float32, float16 or bfloat16.
        dy: upstream gradient, x's shape.
        gamma: x's shape: broadcast already.
        mean: [N, G], the first two dimensions of x.
        rstd: [N, G].
        num_threads: up to so many threads for this call; see `get_num_threads`.
        out: dx to write to, contiguous; may be x or dy itself, any other overlap is refused.

    Returns:
        dx, contiguous, x's shape, as the kind of array that x is. An empty x gives an empty dx.

    Raises:
        TypeError: an argument that is None or no CPU array, or dtypes that are not accepted or not equal.
        ValueError: a rank, shape, layout, overlap or number of threads that is not accepted.
    """
    threads = resolve(num_threads)
    plain = _core.plain_group_normalization_grad(x, dy, gamma, mean, rstd, out, threads)
    if plain is not None:
        return plain

    named = {"x": x, "dy": dy, "gamma": gamma, "mean": mean, "rstd": rstd}
    arrays = {name: to_numpy(name, array) for name, array in named.items()}
    dims, code = spec.check_printed(**arrays)
    shape, dtype = arrays["x"].shape, arrays["x"].dtype
    if out is None:
        dx = empty(shape, dtype)
    else:
        dx = check_given("dx", out, shape, dtype, None, tuple(arrays.items()), ("x", "dy"))
    # Bound to names for the length of the call: the core sees addresses alone.
    x_, dy_, gamma_, mean_, rstd_ = (in_layout(a, CONTIGUOUS) for a in arrays.values())
    _core.group_normalization_grad(
        code, dims.n, dims.num_groups, dims.length,
        _core.address(x_), _core.address(dy_), _core.address(gamma_), _core.address(mean_), _core.address(rstd_),
        _core.address(dx), threads,
    )  # fmt: skip
    return _hand_over(x, out, dx)


def group_norm(
    x: Any,
    num_groups: int,
    gamma: Any = None,
    beta: Any = None,
    eps: float = 1e-5,
    *,
    activation: Activation = None,
    swish_scale: float = 1.0,
    num_threads: int | None = None,
    out: Any = None,
) -> GroupNormOutputs[Any]:
    """Group Normalization and its statistics: `GroupNormOutputs(y, mean, rstd)`.

    Formula (docs/math.md, "The statistics"): mean and variance (biased) over each group, rstd =
    1 / sqrt(variance + eps), y = gamma * (x - mean) * rstd + beta. Two passes; the squares are of x - mean.

    With activation="swish" (docs/math.md, "Swish") that y is gn, and y = gn * sigmoid(swish_scale * gn): the swish
    of CANN's aclnnGroupNormSwish; swish_scale 1 is SiLU. No tensor is made for gn.

    Args:
        x: input, [N, C, *], rank 2 and up, float64, float32, float16 or bfloat16.
        num_groups: G, divides C.
        gamma: [C], x's dtype, or float32 when x is 16-bit; None counts as ones.
        beta: [C], likewise; None counts as zeros.
        eps: finite, 0 or above.
        activation: "swish" to apply it to the result.
        swish_scale: its scale, finite.
        num_threads: up to so many threads for this call; see `get_num_threads`.
        out: (y, mean, rstd) to write to, each None to allocate it. y may be x itself.

    Returns:
        y in x's shape, dtype and layout; mean and rstd [N, G], float32 when x is 16-bit, else x's dtype.
        For groups without elements mean is 0 and rstd 1 / sqrt(eps).

    Raises:
        TypeError: an argument that is no CPU array, a dtype that is not accepted, num_groups not an int.
        ValueError: a shape, layout, overlap, num_groups, eps, activation or number of threads that is not accepted.
    """
    threads = resolve(num_threads)
    if activation is None and type(swish_scale) is float and swish_scale == 1:
        plain = _core.plain_group_norm(x, num_groups, gamma, beta, eps, out, threads)
        if plain is not None:
            return GroupNormOutputs(*plain)

    x_ = to_numpy("x", x)
    gamma_ = None if gamma is None else to_numpy("gamma", gamma)
    beta_ = None if beta is None else to_numpy("beta", beta)
    dims, code, gamma_code, beta_code = spec.check_forward(x_, num_groups, gamma_, beta_, eps)
    activation_code, scale = spec.check_activation(activation, swish_scale)
    stats_dtype = spec.parameter_dtype(x_.dtype)

    layout, like = plan_layout(x_)
    names = GroupNormOutputs._fields
    given = spec.check_out(out, names, _ALL)
    inputs = (("x", x_), ("gamma", gamma_), ("beta", beta_))
    stats_shape = (dims.n, dims.num_groups)
    checked: list[Array | None] = [None, None, None]
    if given[0] is not None:
        order = x_ if like is None else like
        checked[0] = check_given("y", given[0], x_.shape, x_.dtype, order, inputs, ("x",))
    for i in (1, 2):
        if given[i] is not None:
            checked[i] = check_given(names[i], given[i], stats_shape, stats_dtype, None, inputs)
    _check_apart(names, checked)

    y: Output = element_output(checked[0], x_, layout, like)
    mean, rstd = (empty(stats_shape, stats_dtype) if c is None else c for c in checked[1:])
    x_, gamma_, beta_ = in_layout(x_, layout), _contiguous(gamma_), _contiguous(beta_)
    _core.group_norm(
        code, gamma_code, beta_code, spec.dtype_code("mean", stats_dtype), layout, *dims,
        _core.address(x_), _address(gamma_), _address(beta_), float(eps), activation_code, scale,
        _core.address(y.buffer), _core.address(mean), _core.address(rstd), threads,
    )  # fmt: skip
    results = (y.finish(), mean, rstd)
    return GroupNormOutputs(*(_hand_over(x, g, r) for g, r in zip(given, results, strict=True)))

"""The aclnn operators on NumPy arrays, or on arrays that are on a device already.

With NumPy arrays a call uploads, runs, downloads and returns NumPy arrays; inside `with Device(...)` it runs there,
outside on device 0 for the length of the call. With DeviceArrays it queues the work and returns DeviceArrays. Names and
order of parameters are those of `groupnorm`'s own functions; checks, codes and messages are the operator's own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from ..arrays import to_numpy
from ..spec import GroupNormGrads, GroupNormOutputs
from .device import Device, DeviceArray, current_device

_SILU_SCALE = 1.0


def _mask(output_mask: Sequence[bool]) -> tuple[bool, bool, bool]:
    values = tuple(map(bool, output_mask))
    if len(values) != 3:
        raise ValueError(f"output_mask: {len(values)} values; accepted: 3, for dx, dgamma and dbeta")
    return values


def _int64(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: {type(value).__name__}; accepted: a whole number") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{name}: {number}; accepted: a number of 64 bits")
    return number


def _double(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: {type(value).__name__}; accepted: a number") from None


def _groups(mean: Any) -> int:
    """The number of groups that the statistics are of. ValueError unless mean is [N, G]."""
    if mean is None:
        return 1  # the operator says that it is missing
    if len(mean.shape) != 2:
        raise ValueError(f"mean: shape {tuple(mean.shape)}; accepted: [N, G]")
    return int(mean.shape[1])


def _is_on_device(arrays: dict[str, Any]) -> bool:
    """Whether the arrays are DeviceArrays. TypeError when only some are."""
    given = {name: array for name, array in arrays.items() if array is not None}
    on_device = [name for name, array in given.items() if isinstance(array, DeviceArray)]
    if on_device and len(on_device) != len(given):
        other = next(name for name in given if name not in on_device)
        raise TypeError(f"{other}: not a DeviceArray as {on_device[0]} is; accepted: all on the device, or none")
    return bool(on_device)


def _run(
    operator: str,
    arrays: dict[str, Any],
    outputs: Callable[..., Sequence[tuple[tuple[int, ...], Any] | None]],
    arguments: Callable[..., Sequence[Any]],
) -> tuple[Any, ...]:
    """Launches an operator on named input arrays.

    `outputs` gives shape and dtype of each result for the inputs, None for one that is not wanted; `arguments` what
    phase 1 takes, for inputs and outputs on the device.
    """
    on_device = _is_on_device(arrays)
    device = current_device()
    if on_device and device is None:
        raise RuntimeError(f"{operator}: DeviceArrays outside `with Device(...)`; accepted: a call inside it")
    with nullcontext(device) if device else Device(0) as here:
        assert here is not None
        inputs = {
            name: array if on_device or array is None else here.upload(to_numpy(name, array), name)
            for name, array in arrays.items()
        }
        results = [None if wanted is None else here.empty(*wanted) for wanted in outputs(**inputs)]
        try:
            here.launch(operator, arguments(*inputs.values(), *results))
            if on_device:
                return tuple(results)
            return tuple(None if result is None else result.numpy() for result in results)
        finally:
            if not on_device:
                for array in (*inputs.values(), *results):
                    if array is not None:
                        array.free()


def _like(array: Any) -> tuple[tuple[int, ...], Any] | None:
    return None if array is None else (array.shape, array.dtype)


def _sizes(x: Any) -> tuple[int, int, int]:
    """N, C, HxW; sizes that are not there count as 1, so that the operator's own check speaks."""
    shape = (*x.shape, 1, 1)[: max(len(x.shape), 2)]
    return shape[0], shape[1], int(np.prod(shape[2:], dtype=np.int64))


def group_normalization_grad(x: Any, dy: Any, gamma: Any, mean: Any, rstd: Any) -> Any:
    """aclnnGroupNormalizationGrad: the backward as CANN prints it, which is the gradient only where gamma is 1.

    dx = rstd / M * gamma * (M * dy - s1 - xhat * s2), s1 = sum(dy * gamma), s2 = sum(dy * gamma * xhat). Source: the
    operator's document. x, dy, gamma: one shape of 3 to 8 dimensions, [N, G, *]; mean, rstd: [N, G]; one dtype,
    float32, float16 or bfloat16. Returns dx. AclError: 161001 for None, 161002 for any other argument.
    """
    (dx,) = _run(
        "aclnnGroupNormalizationGrad",
        {"x": x, "dy": dy, "gamma": gamma, "mean": mean, "rstd": rstd},
        lambda x, **_: [_like(x)],
        lambda *values: values,
    )
    return dx


def group_norm_backward(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any = None,
    *,
    output_mask: tuple[bool, bool, bool] = (True, True, True),
) -> GroupNormGrads[Any]:
    """aclnnGroupNormBackward: the true gradient, (dx, dgamma, dbeta), None where `output_mask` is False.

    x, dy: [N, C, *]; mean, rstd: [N, G]; gamma: [C] or None. float32, float16 or bfloat16; mean, rstd and gamma of the
    same dtype or float32. AclError: 161001 and 161002 as in the operator's document.
    """

    wanted_outputs = _mask(output_mask)

    def outputs(dy: Any, x: Any, mean: Any, gamma: Any, **_: Any) -> list[tuple[tuple[int, ...], Any] | None]:
        channels = None if x is None or mean is None else ((_sizes(x)[1],), mean.dtype)
        affine = _like(gamma) or channels
        wanted = (_like(x), affine, affine)
        return [one if on else None for one, on in zip(wanted, wanted_outputs, strict=True)]

    def arguments(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, *results: Any) -> list[Any]:
        sizes = _sizes(x) if x is not None else (0, 0, 0)
        return [dy, x, mean, rstd, gamma, *sizes, _groups(mean), wanted_outputs, *results]

    given = {"dy": dy, "x": x, "mean": mean, "rstd": rstd, "gamma": gamma}
    return GroupNormGrads(*_run("aclnnGroupNormBackward", given, outputs, arguments))


def group_norm(
    x: Any, num_groups: int, gamma: Any = None, beta: Any = None, eps: float = 1e-5
) -> GroupNormOutputs[Any]:
    """aclnnGroupNorm: the forward, (y, mean, rstd).

    x: [N, C, *], 2 to 8 dimensions; gamma, beta: [C] or None; all of one dtype, float32, float16 or bfloat16, which
    mean and rstd, [N, num_groups], have too. AclError: 161001 and 161002 as in the operator's document.
    """
    num_groups, eps = _int64("num_groups", num_groups), _double("eps", eps)
    return _forward(
        "aclnnGroupNorm",
        {"x": x, "gamma": gamma, "beta": beta},
        num_groups,
        None,
        lambda x, gamma, beta, *outs: [x, gamma, beta, *_sizes(x), num_groups, eps, *outs],
    )


def group_norm_silu(
    x: Any, num_groups: int, gamma: Any = None, beta: Any = None, eps: float = 1e-5
) -> GroupNormOutputs[Any]:
    """aclnnGroupNormSilu: the forward with y = g / (1 + exp(-g)), g the output of `group_norm`.

    gamma and beta may be float32 beside a 16-bit x; mean and rstd have x's dtype. Else as `group_norm`; x is not empty.
    """
    num_groups, eps = _int64("num_groups", num_groups), _double("eps", eps)
    return _forward(
        "aclnnGroupNormSilu",
        {"x": x, "gamma": gamma, "beta": beta},
        num_groups,
        None,
        lambda x, gamma, beta, *outs: [x, gamma, beta, num_groups, eps, *outs],
    )


def group_norm_swish(
    x: Any, num_groups: int, gamma: Any, beta: Any, eps: float = 1e-5, *, swish_scale: float = _SILU_SCALE
) -> GroupNormOutputs[Any]:
    """aclnnGroupNormSwish: the forward with y = g / (1 + exp(-swish_scale * g)), g the output of `group_norm`.

    mean and rstd have gamma's dtype, which is x's or float32. Else as `group_norm_silu`, gamma and beta not None.
    """
    num_groups, eps = _int64("num_groups", num_groups), _double("eps", eps)
    scale = _double("swish_scale", swish_scale)
    return _forward(
        "aclnnGroupNormSwish",
        {"x": x, "gamma": gamma, "beta": beta},
        num_groups,
        "gamma",
        lambda x, gamma, beta, *outs: [x, gamma, beta, num_groups, "NCHW", eps, True, scale, *outs],
    )


def _forward(
    operator: str, arrays: dict[str, Any], num_groups: int, stats_like: str | None, arguments: Callable[..., list[Any]]
) -> GroupNormOutputs[Any]:
    def outputs(**inputs: Any) -> list[tuple[tuple[int, ...], Any] | None]:
        x, like = inputs["x"], inputs[stats_like or "x"]
        if x is None or like is None:
            return [_like(x), None, None]
        # A number of groups that cannot be is for the operator to refuse, not for the memory.
        groups = num_groups if 0 < num_groups <= max(_sizes(x)[1], 1 << 16) else 1
        stats = (x.shape[0] if x.shape else 1, groups), like.dtype
        return [_like(x), stats, stats]

    if arrays["x"] is None:
        raise TypeError(f"{operator}: x is None; accepted: an array")
    return GroupNormOutputs(*_run(operator, arrays, outputs, arguments))


def group_norm_swish_grad(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any,
    beta: Any,
    *,
    swish_scale: float = _SILU_SCALE,
    output_mask: tuple[bool, bool, bool] = (True, True, True),
) -> GroupNormGrads[Any]:
    """aclnnGroupNormSwishGrad: the gradient of `group_norm_swish`, (dx, dgamma, dbeta), one dtype for all.

    Swish's derivative at gamma * xhat + beta is applied to dy first, then the true gradient. The operator always gives
    dx; a False in `output_mask` leaves dgamma or dbeta out. AclError: 161001 and 161002 as in its document.
    """

    wanted_outputs, scale = _mask(output_mask), _double("swish_scale", swish_scale)

    def arguments(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, beta: Any, *results: Any) -> list[Any]:
        return [dy, mean, rstd, x, gamma, beta, _groups(mean), "NCHW", scale, *wanted_outputs[1:], *results]

    given = {"dy": dy, "x": x, "mean": mean, "rstd": rstd, "gamma": gamma, "beta": beta}
    grads = _run(
        "aclnnGroupNormSwishGrad",
        given,
        lambda x, gamma, beta, **_: [_like(x), _like(gamma), _like(beta)],
        arguments,
    )
    return GroupNormGrads(*(grad if on else None for grad, on in zip(grads, wanted_outputs, strict=True)))

"""The operators as one writes them down, on the arrays of NumPy, PyTorch or JAX alike (docs/math.md).

Arithmetic is float32. x is [N, C, *], or [N, *, C] in memory and in its indices where `last` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Form(NamedTuple):
    """How a library converts, and where the channels are."""

    num_groups: int
    cast: Callable[[Any, Any], Any]  # (array, dtype)
    float32: Any
    last: bool = False

    def grouped(self, array: Any) -> Any:
        """[N, G, D, *] or [N, *, G, D], in float32."""
        n, *rest = array.shape
        if self.last:
            *positions, channels = rest
        else:
            channels, *positions = rest
        positions = positions or [1]
        groups = (self.num_groups, channels // self.num_groups)
        shape = (n, *positions, *groups) if self.last else (n, *groups, *positions)
        return self.cast(array.reshape(shape), self.float32)

    def axes(self, grouped: Any) -> tuple[int, tuple[int, ...]]:
        """The axis of the channels of a group, and those of the positions."""
        rank = len(grouped.shape)
        return (rank - 1, tuple(range(1, rank - 2))) if self.last else (2, tuple(range(3, rank)))

    def spread(self, values: Any, grouped: Any) -> Any:
        """[N, G] or [C] so that it goes with a grouped array, in float32."""
        ones = (1,) * (len(grouped.shape) - 3)
        if len(values.shape) == 2:
            n, groups = values.shape
            shape = (n, *ones, groups, 1) if self.last else (n, groups, 1, *ones)
        else:
            groups, d = self.num_groups, values.shape[0] // self.num_groups
            shape = (1, *ones, groups, d) if self.last else (1, groups, d, *ones)
        return self.cast(values.reshape(shape), self.float32)

    def finish(self, result: Any, like: Any) -> Any:
        return self.cast(result, like.dtype).reshape(like.shape)


def backward(form: Form, dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, sums: bool) -> tuple[Any, ...]:
    """dx, and with `sums` dgamma and dbeta."""
    d, x_ = form.grouped(dy), form.grouped(x)
    channel, positions = form.axes(x_)
    rstd_, gamma_ = form.spread(rstd, x_), form.spread(gamma, x_)
    xhat = (x_ - form.spread(mean, x_)) * rstd_
    sum_dy, sum_dy_xhat = d.sum(positions, keepdims=True), (d * xhat).sum(positions, keepdims=True)
    m = 1
    for axis in (channel, *positions):
        m *= x_.shape[axis]
    mean_dxhat = (gamma_ * sum_dy).sum(channel, keepdims=True) / m
    slope = (gamma_ * sum_dy_xhat).sum(channel, keepdims=True) / m
    dx = form.finish(rstd_ * (gamma_ * d - mean_dxhat - xhat * slope), x)
    if not sums:
        return (dx,)
    return dx, form.finish(sum_dy_xhat.sum(0), gamma), form.finish(sum_dy.sum(0), gamma)


def forward(form: Form, x: Any, gamma: Any, beta: Any, eps: float) -> tuple[Any, ...]:
    """y, and mean and rstd [N, G] in float32."""
    x_ = form.grouped(x)
    channel, positions = form.axes(x_)
    over = (channel, *positions)
    mean = x_.mean(over, keepdims=True)
    centred = x_ - mean
    rstd = ((centred * centred).mean(over, keepdims=True) + eps) ** -0.5
    y = centred * rstd * form.spread(gamma, x_) + form.spread(beta, x_)
    stats = (x.shape[0], form.num_groups)
    return form.finish(y, x), mean.reshape(stats), rstd.reshape(stats)


def printed(form: Form, x: Any, dy: Any, gamma: Any, mean: Any, rstd: Any) -> Any:
    """dx of the printed formula; x, dy, gamma are [N, G, D, *] already."""
    over = tuple(range(2, len(x.shape)))
    x_, d, gamma_ = (form.cast(array, form.float32) for array in (x, dy, gamma))
    shape = (*mean.shape, *(1 for _ in over))
    mean_, rstd_ = (form.cast(array.reshape(shape), form.float32) for array in (mean, rstd))
    m = 1
    for axis in over:
        m *= x.shape[axis]
    xhat = (x_ - mean_) * rstd_
    weighted = d * gamma_
    s1, s2 = weighted.sum(over, keepdims=True), (weighted * xhat).sum(over, keepdims=True)
    return form.cast((rstd_ / m) * gamma_ * (m * d - s1 - xhat * s2), x.dtype)

"""How far the formula that CANN prints is from the gradient."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from . import spec
from .arrays import to_numpy
from .reference import to_float64


class FormulaGap(NamedTuple):
    """Printed formula minus true gradient, over all elements of dx."""

    max_abs: float
    rms_abs: float
    max_rel: float  # max_abs / max |true gradient|
    rms_rel: float  # rms_abs / RMS of the true gradient


@np.errstate(all="ignore")  # infinities and NaN in the operands come out as such
def formula_gap(x: Any, dy: Any, gamma: Any, mean: Any, rstd: Any) -> FormulaGap:
    """The size of the difference between `group_normalization_grad` and the true gradient.

    Both take gamma of x's shape; the true one keeps it off the two sums (docs/math.md, "Why they
    differ"): printed - true = (rstd / M) * (1 - gamma) * (s1 + xhat * s2). Computed in float64, one
    sample at a time. Exactly 0 where gamma is 1 and all operands are finite.

    Args and errors are those of `group_normalization_grad`. An empty x, and a true gradient of 0 without a
    gap, give zeros; a gap over a true gradient of 0 is infinite in relative terms.
    """
    named = {"x": x, "dy": dy, "gamma": gamma, "mean": mean, "rstd": rstd}
    arrays = {name: to_numpy(name, array) for name, array in named.items()}
    dims, _ = spec.check_printed(**arrays)
    max_gap = max_true = squares_gap = squares_true = 0.0
    for n in range(dims.n if dims.num_groups * dims.length else 0):
        x_, dy_, gamma_ = (to_float64(arrays[k][n]).reshape(dims.num_groups, -1) for k in ("x", "dy", "gamma"))
        mean_, rstd_ = (to_float64(arrays[k][n])[:, None] for k in ("mean", "rstd"))
        xhat = (x_ - mean_) * rstd_
        dxhat = dy_ * gamma_
        s1 = dxhat.sum(1, keepdims=True)
        s2 = (dxhat * xhat).sum(1, keepdims=True)
        correction = (s1 + xhat * s2) / dims.length
        gap = rstd_ * (1 - gamma_) * correction
        true = rstd_ * (dxhat - correction)
        max_gap = float(np.maximum(max_gap, np.abs(gap).max()))
        max_true = float(np.maximum(max_true, np.abs(true).max()))
        squares_gap += float((gap * gap).sum())
        squares_true += float((true * true).sum())
    count = max(1, dims.n * dims.num_groups * dims.length)
    rms_gap, rms_true = math.sqrt(squares_gap / count), math.sqrt(squares_true / count)
    return FormulaGap(max_gap, rms_gap, _ratio(max_gap, max_true), _ratio(rms_gap, rms_true))


def _ratio(gap: float, true: float) -> float:
    if true == 0:
        return 0.0 if gap == 0 else math.inf
    return gap / true

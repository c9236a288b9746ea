"""The expected outputs of a request."""

from __future__ import annotations

import numpy as np

from .. import reference
from ..spec import Array
from . import ascend910b
from .data import rounded, with_one_nan
from .request import PRINTED, Request


def make_expected(request: Request, inputs: dict[str, Array]) -> dict[str, Array]:
    """dx, and dgamma and dbeta of the gradient: float64 rounded once, or the model of the kernel.

    One sample at a time: float64 takes eight times the memory of 16-bit data, and there are several arrays of it.
    """
    with np.errstate(all="ignore"):
        if request.op == PRINTED:
            return {"dx": _printed(request, inputs)}
        return _true(request, inputs)


def _printed(request: Request, inputs: dict[str, Array]) -> Array:
    dx = np.empty(request.shape, request.dtype_of("dx"))
    for n in range(request.shape[0]):
        sample = {name: array[n : n + 1] for name, array in inputs.items()}
        if request.numerics == "ascend910b":
            dx[n : n + 1] = ascend910b.group_normalization_grad(**sample, overflow=request.overflow)
        else:
            dx[n : n + 1] = rounded(reference.group_normalization_grad(**sample), dx.dtype)
    return with_one_nan(dx)


def _true(request: Request, inputs: dict[str, Array]) -> dict[str, Array]:
    n, c = request.shape[:2]
    dx = np.empty(request.shape, request.dtype_of("dx"))
    sums = {name: np.zeros((n, c)) for name in ("dgamma", "dbeta")}
    for i in range(n):
        x, dy, mean, rstd = (inputs[name][i : i + 1] for name in ("x", "dy", "mean", "rstd"))
        grads = reference.group_norm_backward(dy, x, mean, rstd, inputs["gamma"])
        dx[i : i + 1] = rounded(grads.dx, dx.dtype)  # type: ignore[arg-type]  # nothing is masked
        sums["dgamma"][i], sums["dbeta"][i] = grads.dgamma, grads.dbeta
    found = {name: rounded(reference.total(values, 0), request.dtype_of(name)) for name, values in sums.items()}
    return {"dx": with_one_nan(dx), **found}

"""The expected outputs of a request."""

from __future__ import annotations

import numpy as np

from .. import reference
from ..spec import Array
from . import ascend910b
from .data import blocks_of_groups, rounded, with_one_nan
from .request import PRINTED, Request


def make_expected(request: Request, inputs: dict[str, Array]) -> dict[str, Array]:
    """dx, and dgamma and dbeta of the gradient: float64 rounded once, or the model of the kernel."""
    with np.errstate(all="ignore"):
        if request.op == PRINTED:
            return {"dx": _printed(request, inputs)}
        return _true(request, inputs)


def _printed(request: Request, inputs: dict[str, Array]) -> Array:
    dx = np.empty(request.shape, request.dtype_of("dx"))
    for n, low, high in blocks_of_groups(request):
        part = {name: array[n : n + 1, low:high] for name, array in inputs.items()}
        if request.numerics == "ascend910b":
            dx[n, low:high] = ascend910b.group_normalization_grad(**part, overflow=request.overflow)[0]
        else:
            dx[n, low:high] = rounded(reference.group_normalization_grad(**part)[0], dx.dtype)
    return with_one_nan(dx)


def _true(request: Request, inputs: dict[str, Array]) -> dict[str, Array]:
    n, c = request.shape[:2]
    per_group = c // request.num_groups
    dx = np.empty(request.shape, request.dtype_of("dx"))
    sums = {name: np.zeros((n, c)) for name in ("dgamma", "dbeta")}
    for i, low, high in blocks_of_groups(request):
        channels = slice(low * per_group, high * per_group)
        x, dy = (inputs[name][i : i + 1, channels] for name in ("x", "dy"))
        mean, rstd = (inputs[name][i : i + 1, low:high] for name in ("mean", "rstd"))
        grads = reference.group_norm_backward(dy, x, mean, rstd, inputs["gamma"][channels])
        dx[i, channels] = rounded(grads.dx[0], dx.dtype)  # type: ignore[index]  # nothing is masked
        sums["dgamma"][i, channels], sums["dbeta"][i, channels] = grads.dgamma, grads.dbeta
    found = {name: rounded(reference.total(values, 0), request.dtype_of(name)) for name, values in sums.items()}
    return {"dx": with_one_nan(dx), **found}

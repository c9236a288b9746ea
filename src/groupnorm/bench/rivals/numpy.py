"""NumPy, as one writes the formula down: one thread, a temporary for each operation."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..contestant import Contestant, Contestants, Rival
from ..operands import EPS, Operands
from . import formula


def _prepare(operands: Operands, _threads: int) -> Contestants:
    setup, x, dy, mean, rstd, gamma, beta = operands
    form = formula.Form(setup.case.num_groups, lambda a, dtype: a.astype(dtype, copy=False), np.float32)

    def call() -> Any:
        if setup.operator == "forward":
            return formula.forward(form, x, gamma, beta, EPS)
        if setup.operator == "printed":
            return (formula.printed(form, x, dy, gamma, mean, rstd),)
        return formula.backward(form, dy, x, mean, rstd, gamma, setup.operator == "backward")

    return {"allocating": Contestant(call, lambda results: results[0])}


NAIVE = Rival("numpy", lambda: np.__version__, _prepare)

"""The arrays of a setup."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..cases import bfloat16
from ..memory import empty
from ..numpy import group_norm
from ..spec import CHANNELS_LAST, CONTIGUOUS, Array
from .setups import Setup

EPS = 1e-5


class Operands(NamedTuple):
    """x, dy [N, C, *] ([N, G, D, *] for the printed formula), mean, rstd [N, G], gamma, beta [C] (gamma as x there)."""

    setup: Setup
    x: Array
    dy: Array
    mean: Array
    rstd: Array
    gamma: Array
    beta: Array


def make(setup: Setup) -> Operands:
    """Normally distributed data: no value costs a CPU more time than another."""
    case = setup.case
    data = np.dtype(np.float32) if setup.dtype == "float32" else np.dtype(np.float16)
    if setup.dtype in ("bfloat16", "mixed"):
        data = bfloat16()
    parameter = np.dtype(np.float32) if setup.dtype == "mixed" else data
    rng = np.random.default_rng(1)

    n, channels, *rest = case.shape
    printed = setup.operator == "printed"
    shape = (n, case.num_groups, channels // case.num_groups, *rest) if printed else case.shape
    layout = CHANNELS_LAST if setup.layout == "channels-last" else CONTIGUOUS

    def normal() -> Array:
        array = empty(shape, data, layout)
        for sample in array:  # one at a time: float32 of all would be twice the memory
            sample[...] = rng.standard_normal(sample.shape, np.float32)
        return array

    x, dy = normal(), normal()
    gamma, beta = (rng.standard_normal(channels, np.float32).astype(parameter) for _ in range(2))
    _, mean, rstd = group_norm(x, case.num_groups, eps=EPS)
    return Operands(setup, x, dy, mean.astype(parameter), rstd.astype(parameter), normal() if printed else gamma, beta)

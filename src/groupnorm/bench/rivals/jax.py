"""JAX on the CPU: the forward written down, its gradient by jit of vjp, which makes the statistics again."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np

from ...spec import Array
from ..contestant import Contestant, Contestants, Rival, Unable
from ..operands import EPS, Operands
from . import formula


def _version() -> str:
    return str(importlib.import_module("jax").__version__)


def _prepare(operands: Operands, threads: int) -> Contestants:
    if threads != len(os.sched_getaffinity(0)):
        raise Unable("its threads are the CPUs of the process")
    jax: Any = importlib.import_module("jax")
    jnp: Any = importlib.import_module("jax.numpy")
    setup = operands.setup
    last = setup.layout == "channels-last"
    form = formula.Form(setup.case.num_groups, lambda a, dtype: a.astype(dtype), jnp.float32, last)
    cpu = jax.devices("cpu")[0]

    def put(array: Array) -> Any:
        return jax.device_put(np.moveaxis(array, 1, -1) if last and array.ndim > 2 else array, cpu)

    def value(results: Any) -> Array:
        array = np.asarray(results[0]).astype(np.float32)
        return np.moveaxis(array, -1, 1) if last else array

    x, dy, gamma, beta = (put(array) for array in (operands.x, operands.dy, operands.gamma, operands.beta))
    if setup.operator == "forward":
        forward = jax.jit(lambda x, gamma, beta: formula.forward(form, x, gamma, beta, EPS))
        return {"allocating": Contestant(lambda: jax.block_until_ready(forward(x, gamma, beta)), value)}
    if setup.operator == "printed":
        mean, rstd = put(operands.mean), put(operands.rstd)
        printed = jax.jit(lambda *arguments: (formula.printed(form, *arguments),))
        return {"allocating": Contestant(lambda: jax.block_until_ready(printed(x, dy, gamma, mean, rstd)), value)}

    def gradient(dy: Any, x: Any, gamma: Any, beta: Any) -> Any:
        if setup.operator == "backward-dx":
            return jax.vjp(lambda x: formula.forward(form, x, gamma, beta, EPS)[0], x)[1](dy)
        return jax.vjp(lambda x, gamma, beta: formula.forward(form, x, gamma, beta, EPS)[0], x, gamma, beta)[1](dy)

    backward = jax.jit(gradient)
    return {"allocating": Contestant(lambda: jax.block_until_ready(backward(dy, x, gamma, beta)), value)}


JAX = Rival("jax", _version, _prepare)

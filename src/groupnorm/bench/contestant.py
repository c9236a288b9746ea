"""What can be timed: calls, and the three that are no rival's: ours, and the triad in two ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import _core
from ..numpy import group_norm, group_norm_backward, group_normalization_grad
from ..spec import Array
from .operands import EPS, Operands


class Unable(Exception):
    """Why a contestant cannot run a setup."""


class Contestant(NamedTuple):
    """One way to call one library."""

    call: Callable[[], Any]
    # dx or y of what `call` returned, an array with the elements of x in the order of its indices.
    result: Callable[[Any], Array]
    # Runs before a sample, untimed: sets the threads of the library.
    enter: Callable[[], None] = lambda: None


# By what happens to the outputs: "given" or "allocating".
Contestants = dict[str, Contestant]


class Rival(NamedTuple):
    """A library: `version` raises ImportError or OSError where there is none, `prepare` raises Unable."""

    name: str
    version: Callable[[], str]
    prepare: Callable[[Operands, int], Contestants]


def ours(operands: Operands, threads: int) -> Contestants:
    """The public functions."""
    setup, x, dy, mean, rstd, gamma, beta = operands
    out: Any
    if setup.operator == "printed":
        out = np.empty_like(x)
        return {
            "given": Contestant(
                lambda: group_normalization_grad(x, dy, gamma, mean, rstd, num_threads=threads, out=out), np.asarray
            ),
            "allocating": Contestant(
                lambda: group_normalization_grad(x, dy, gamma, mean, rstd, num_threads=threads), np.asarray
            ),
        }
    if setup.operator == "forward":
        groups = setup.case.num_groups
        out = group_norm(x, groups, gamma, beta, EPS)
        return {
            "given": Contestant(
                lambda: group_norm(x, groups, gamma, beta, EPS, num_threads=threads, out=out), lambda r: r.y
            ),
            "allocating": Contestant(
                lambda: group_norm(x, groups, gamma, beta, EPS, num_threads=threads), lambda r: r.y
            ),
        }
    mask = (True, *(setup.operator == "backward" for _ in range(2)))
    out = tuple(group_norm_backward(dy, x, mean, rstd, gamma, output_mask=mask))
    arguments = (dy, x, mean, rstd, gamma)
    return {
        "given": Contestant(
            lambda: group_norm_backward(*arguments, output_mask=mask, num_threads=threads, out=out), lambda r: r.dx
        ),
        "allocating": Contestant(
            lambda: group_norm_backward(*arguments, output_mask=mask, num_threads=threads), lambda r: r.dx
        ),
    }


def triad(operands: Operands, threads: int) -> Contestants:
    """What memory allows: as many arrays read and written as the operator has to, through the caches and past them."""
    reads = (operands.x, operands.dy, operands.gamma)[: operands.setup.reads]
    output = np.empty_like(operands.x)
    first, second, third = [_core.address(array) for array in reads] + [0] * (3 - len(reads))
    to, size = _core.address(output), output.nbytes
    return {
        "cached": Contestant(lambda: _core.triad(first, second, third, to, size, False, threads), lambda _: output),
        "streamed": Contestant(lambda: _core.triad(first, second, third, to, size, True, threads), lambda _: output),
    }

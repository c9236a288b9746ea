"""Every SIMD level of this machine, every layout, and the folder of shared material where there is one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import groupnorm
from groupnorm import _core
from groupnorm.cases import bfloat16

ISA_LEVELS = [name for name, compiled, supported in _core.isa_list() if compiled and supported]
BFLOAT16 = bfloat16()
DTYPES = [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16, np.dtype(np.float64)]
LOW_DTYPES = DTYPES[:3]


def pytest_configure() -> None:
    """A shell has what it starts in the background ignore interrupts, and programs hand that down to their own."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=ISA_LEVELS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once on each level."""
    assert _core.select_isa(request.param)
    yield request.param
    _core.select_isa(None)


@pytest.fixture
def threads_kept() -> Iterator[None]:
    """Puts the number of threads back."""
    before = groupnorm.threads._forced
    yield
    groupnorm.threads._forced = before


@pytest.fixture(params=["in C++", "in Python"])
def each_function(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """groupnorm.torch with its autograd function in C++, as it is built, and with that in Python."""
    from groupnorm.torch import eager

    if request.param == "in Python":
        monkeypatch.setattr(eager, "built", None)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The material beside the checkout, which the project itself never needs."""
    folder = Path(os.environ.get("GROUPNORM_SHARED", Path(__file__).parents[2] / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no shared material at {folder}")
    return folder


def channels_last(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same values with the channels side by side in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def bits(array: np.ndarray[Any, Any]) -> bytes:
    """The bits of the values in order of their indices."""
    return np.ascontiguousarray(array).tobytes()

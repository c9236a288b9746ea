"""groupnorm.triton with kernels that Triton's interpreter runs on CPU tensors, for tests.

What a kernel becomes is decided when it is imported, so this is the one place that imports them in the process of the
tests; those that compile run in processes of their own.
"""

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: `make test` installs it")

_before = os.environ.get("TRITON_INTERPRET")
os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton is not installed: `make test-triton` installs it")
import groupnorm.triton as gt  # noqa: E402
from groupnorm.triton import launch  # noqa: E402

if _before is None:
    del os.environ["TRITON_INTERPRET"]

assert launch.INTERPRETED, "groupnorm.triton was imported before the interpreter was asked for"

from groupnorm.reference import to_float64  # noqa: E402


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    """Triton also asks while a kernel runs. Modules of tests import this."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def tensor(array):
    """A NumPy array as a tensor; bfloat16 by its bits."""
    array = np.ascontiguousarray(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def channels_last(x):
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def array(result):
    """A tensor as float64."""
    return to_float64(result.detach().contiguous().to(torch.float64).numpy())


def backward(inputs, *, last=False, **options):
    """dx, dgamma, dbeta of `cases.Inputs`, as tensors."""
    x, dy = tensor(inputs.x), tensor(inputs.dy)
    if last and x.dim() > 2:
        x, dy = channels_last(x), channels_last(dy)
    rest = (tensor(inputs.mean), tensor(inputs.rstd), tensor(inputs.gamma))
    result = gt.group_norm_backward(dy, x, *rest, **options)
    if result[0] is not None:
        assert result[0].stride() == torch.empty_like(x).stride()
        assert result[0].dtype == x.dtype
    return result


__all__ = ["array", "backward", "channels_last", "gt", "interpreter", "launch", "tensor", "torch"]

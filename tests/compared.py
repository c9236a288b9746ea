"""What the tests of comparison make."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from conftest import BFLOAT16
from groupnorm.compare import source
from groupnorm.golden import data, expected, store
from groupnorm.golden.request import PRINTED, TRUE, Request

DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
}
ALL = ("x", "dy", "gamma", "mean", "rstd")


def save(name, array):
    array = np.ascontiguousarray(array)
    np.save(name, array.view(np.uint16) if array.dtype == BFLOAT16 else array)


def made(**fields):
    """A golden case in ./case, with its arrays."""
    op = fields.setdefault("op", TRUE)
    fields.setdefault("shape", (2, 3, 4, 5, 7) if op == PRINTED else (2, 12, 5, 7))
    request = Request(**{"name": "case", "num_groups": 3, "dtype": "float32", "family": "centred", **fields})
    if Path("case").exists():
        shutil.rmtree("case")
    store.write_case(Path(), request, store.Layout())
    inputs = data.make_inputs(request)
    return request, inputs, expected.make_expected(request, inputs)


def tensors(got, golden):
    """The two, saved and opened."""
    save("got.npy", got)
    save("golden.npy", golden)
    return [source.open_tensor("GOT", Path(n), dtype=golden.dtype) for n in ("got.npy", "golden.npy")]

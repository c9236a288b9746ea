"""Hashes of outputs over the small cases, for another machine or compiler to be checked against.

python tests/hashes.py    writes tests/hashes.json; a change of it changes every user's bits
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

import groupnorm
from groupnorm import cases, spec
from groupnorm.cases import SMALL, Case, uniform

FILE = Path(__file__).with_name("hashes.json")
CASES = (*SMALL, Case("split", (1, 8, 100, 101), 1))


def _hash(arrays) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def _inputs(case: Case, dtype: np.dtype) -> cases.Inputs:
    """Operands from integer arithmetic and one rounding each: no sum of NumPy's takes part."""
    parameter = spec.parameter_dtype(dtype)
    stats = (case.shape[0], case.num_groups)
    return cases.Inputs(
        (0.25 + 1.5 * uniform(case.shape, 1)).astype(dtype),
        (0.5 + uniform(case.shape, 2)).astype(dtype),
        (1 + 0.5 * uniform(case.shape[1:2], 3)).astype(parameter),
        (0.125 + 0.25 * uniform(stats, 4)).astype(parameter),
        (1.25 + 0.25 * uniform(stats, 5)).astype(parameter),
    )


def current(dtypes, move=lambda array: array, **options) -> dict[str, str]:
    """Hashes as computed now; `move` changes the layout of x and dy."""
    found = {}
    for case in CASES:
        for dtype in dtypes:
            name = f"{case.name} {dtype}"
            x, dy, gamma, mean, rstd = _inputs(case, dtype)
            moved = (move(dy), move(x)) if x.ndim > 2 else (dy, x)
            for recenter in (False, True):
                grads = groupnorm.group_norm_backward(*moved, mean, rstd, gamma, recenter=recenter, **options)
                found[f"group_norm_backward {name}{' recenter' * recenter}"] = _hash(grads)
            outputs = groupnorm.group_norm(moved[1], case.num_groups, gamma, **options)
            found[f"group_norm {name}"] = _hash(outputs)
            swish = dict(
                activation="swish", swish_scale=1.702, beta=(0.5 * uniform(gamma.shape, 6)).astype(gamma.dtype)
            )
            grads = groupnorm.group_norm_backward(*moved, mean, rstd, gamma, **swish, **options)
            found[f"group_norm_backward {name} swish"] = _hash(grads)
            outputs = groupnorm.group_norm(moved[1], case.num_groups, gamma, **swish, **options)
            found[f"group_norm {name} swish"] = _hash(outputs)
            if dtype != np.float64:
                grouped = cases.grouped(cases.Inputs(x, dy, gamma, mean, rstd))
                order = (grouped.x, grouped.dy, grouped.gamma, grouped.mean, grouped.rstd)
                found[f"group_normalization_grad {name}"] = _hash(
                    [groupnorm.group_normalization_grad(*order, **options)]
                )
    return found


if __name__ == "__main__":
    every = [np.dtype(np.float32), np.dtype(np.float16), cases.bfloat16(), np.dtype(np.float64)]
    FILE.write_text(json.dumps(current(every), indent=0, sort_keys=True) + "\n")

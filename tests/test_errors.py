"""Bad input: every line of the contract's error lists, with its message, and nothing written."""

from __future__ import annotations

import re

import numpy as np
import pytest

import groupnorm
from conftest import BFLOAT16, channels_last
from groupnorm import cases
from groupnorm.cases import Case

CASE = Case("case", (2, 8, 4, 6), 2)


class _OnTheGpu:
    dtype = "float32"

    def __dlpack__(self, **_):
        raise AssertionError("never asked for")

    def __dlpack_device__(self):
        return (2, 0)


def _backward(dtype=np.float32, parameter_dtype=None, out=None, **changes):
    inputs = cases.make(CASE, dtype, parameter_dtype=parameter_dtype)._asdict()
    options = {k: changes.pop(k) for k in list(changes) if k not in inputs}
    return groupnorm.group_norm_backward(**{**inputs, **changes}, **options, out=out)


def _printed(dtype=np.float32, out=None, **changes):
    return groupnorm.group_normalization_grad(
        **{**cases.grouped(cases.make(CASE, dtype))._asdict(), **changes}, out=out
    )


def _f(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


ACTIVATION = [
    (dict(activation="relu"), ValueError, "activation: 'relu'; accepted: 'swish' or None"),
    (dict(activation=True), ValueError, "activation: True; accepted: 'swish' or None"),
    (dict(activation="swish", swish_scale="1"), TypeError, "swish_scale: str '1'; accepted: a float"),
    (dict(activation="swish", swish_scale=True), TypeError, "swish_scale: bool True; accepted: a float"),
    (dict(activation="swish", swish_scale=float("inf")), ValueError, "swish_scale: inf; accepted: a finite number"),
    (dict(activation="swish", swish_scale=float("nan")), ValueError, "swish_scale: nan; accepted: a finite number"),
    (dict(activation="swish", swish_scale=10**400), ValueError, "swish_scale: 1000"),
    (dict(swish_scale=1.702), ValueError, "swish_scale: 1.702 without an activation; accepted: with activation='swish' only"),
]  # fmt: skip


BACKWARD = [
    (dict(x=None), TypeError, "x: None; accepted: a NumPy array or a CPU array with DLPack"),
    (dict(dy=None), TypeError, "dy: None"),
    (dict(mean=None), TypeError, "mean: None"),
    (dict(rstd=None), TypeError, "rstd: None"),
    (dict(x=[[1.0]]), TypeError, "x: list; accepted: a NumPy array"),
    (dict(x=np.ma.ones((2, 8, 4, 6))), TypeError, "x: a masked array"),
    (dict(x=_OnTheGpu()), TypeError, r"x: an array on DLPack device (2, 0); accepted: CPU memory"),
    (dict(x=_f(2, 8, 4, 6, dtype=np.int32)), TypeError, "x: dtype int32; accepted: float64, float32, float16, bfloat16"),
    (dict(x=_f(2, 8, 4, 6, dtype=np.complex64)), TypeError, "x: dtype complex64; accepted"),
    (dict(x=_f(2, 8, 4, 6, dtype=">f4")), TypeError, "x: dtype float32 is byte-swapped (>f4); accepted: native byte order"),
    (dict(x=_f(2, 8, 4, 6).astype(BFLOAT16).astype(BFLOAT16.newbyteorder(">"))), TypeError, "x: dtype bfloat16 is byte-swapped"),
    (dict(recenter="no"), TypeError, "recenter: str 'no'; accepted: True or False"),
    (dict(beta=_f(8)), ValueError, "beta: an array without an activation; accepted: None (beta only matters with an activation)"),
    (dict(recenter=True, activation="swish"), ValueError, "recenter: True with an activation; accepted: False"),
    (dict(activation="swish", beta=_f(2)), ValueError, "beta: shape (2,); accepted: (8,), one element per channel"),
    (dict(activation="swish", beta=_f(8, dtype=np.float64)), TypeError, "beta: dtype float64 does not go with the others (x float32, dy float32, gamma float32, beta float64, mean float32, rstd float32)"),
    (dict(activation="swish", beta=[0.0] * 8), TypeError, "beta: list; accepted: a NumPy array"),
    *ACTIVATION,
    (dict(mean=_f(2, 2, dtype=">f4")), TypeError, "mean: dtype float32 is byte-swapped (>f4)"),
    (dict(dy=_f(2, 8, 4, 6, dtype=np.float64)), TypeError, "dy: dtype float64 does not go with the others (x float32, dy float64"),
    (dict(gamma=_f(8, dtype=np.float64)), TypeError, "gamma: dtype float64 does not go with the others (x float32, dy float32, gamma float64, mean float32, rstd float32); accepted: float64, float32, float16 or bfloat16 for x, dy, and for gamma, mean, rstd the dtype of x, or float32 when x is 16-bit"),
    (dict(dtype=np.float64, gamma=_f(8)), TypeError, "gamma: dtype float32 does not go with the others (x float64"),
    (dict(dtype=np.float16, gamma=_f(8, dtype=BFLOAT16)), TypeError, "gamma: dtype bfloat16 does not go with the others (x float16"),
    (dict(mean=_f(2, 2, dtype=np.float16)), TypeError, "mean: dtype float16 does not go with"),
    (dict(dtype=np.float16, rstd=_f(2, 2, dtype=np.float16)), TypeError, "rstd: dtype float16 does not go with the others (x float16, dy float16, gamma float32, mean float32, rstd float16); accepted: the dtype of mean"),
    (dict(x=_f(8), dy=_f(8)), ValueError, "x: rank 1, shape (8,); accepted: rank 2 and up, [N, C, *]"),
    (dict(dy=_f(2, 8, 4, 5)), ValueError, "dy: shape (2, 8, 4, 5); accepted: (2, 8, 4, 6), the shape of x"),
    (dict(mean=_f(2), rstd=_f(2)), ValueError, "mean: shape (2,); accepted: (2, num_groups), that is [N, G]"),
    (dict(mean=_f(3, 2), rstd=_f(3, 2)), ValueError, "mean: shape (3, 2); accepted: (2, num_groups)"),
    (dict(mean=_f(2, 0), rstd=_f(2, 0)), ValueError, "mean: num_groups = 0 with C = 8 channels; accepted: a positive number of groups that divides C"),
    (dict(mean=_f(2, 3), rstd=_f(2, 3)), ValueError, "mean: num_groups = 3 with C = 8"),
    (dict(mean=_f(2, 16), rstd=_f(2, 16)), ValueError, "mean: num_groups = 16 with C = 8"),
    (dict(rstd=_f(2, 4)), ValueError, "rstd: shape (2, 4); accepted: (2, 2), the shape of mean"),
    (dict(gamma=_f(2)), ValueError, "gamma: shape (2,); accepted: (8,), one element per channel"),
    (dict(gamma=_f(2, 8, 4, 6)), ValueError, "gamma: shape (2, 8, 4, 6); accepted: (8,)"),
    (dict(output_mask=(True, True)), ValueError, "output_mask: (True, True); accepted: three booleans"),
    (dict(output_mask="yes"), ValueError, "output_mask: 'yes'"),
    (dict(output_mask=None), ValueError, "output_mask: None"),
    (dict(num_threads=0), ValueError, "num_threads: 0; accepted: an int from 1 to 1024"),
    (dict(num_threads=-1), ValueError, "num_threads: -1"),
    (dict(num_threads=2.5), ValueError, "num_threads: 2.5"),
    (dict(num_threads=True), ValueError, "num_threads: True"),
    (dict(num_threads=10**9), ValueError, "num_threads: 1000000000"),
    (dict(out=_f(2, 8, 4, 6)), TypeError, "out: ndarray; accepted: a tuple of 3 arrays or None, for dx, dgamma, dbeta"),
    (dict(out=(None, None)), TypeError, "out: 2; accepted: a tuple of 3"),
    (dict(out=(_f(2, 8, 4, 6), None, None), output_mask=(False, True, True)), ValueError, "out: an array for dx, which output_mask leaves out"),
    (dict(out=(_f(2, 8, 4, 6, dtype=np.float64), None, None)), TypeError, "out (dx): dtype float64; accepted: float32"),
    (dict(out=(_f(2, 8, 24), None, None)), ValueError, "out (dx): shape (2, 8, 24); accepted: (2, 8, 4, 6)"),
    (dict(out=(None, _f(4), None)), ValueError, "out (dgamma): shape (4,); accepted: (8,)"),
    (dict(out=(None, _f(16)[::2], None)), ValueError, "out (dgamma): strides (8,); accepted: a contiguous array"),
    (dict(out=(channels_last(_f(2, 8, 4, 6)), None, None)), ValueError, "out (dx): strides (768, 4, 192, 32) for shape (2, 8, 4, 6); accepted: the layout of x, strides (768, 96, 24, 4)"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "message"), BACKWARD, ids=range(len(BACKWARD)))
def test_backward_names_the_mistake(changes, error, message):
    with pytest.raises(error, match=re.escape(message)):
        _backward(**changes)


PRINTED = [
    *((dict([(name, None)]), TypeError, f"{name}: None; accepted") for name in ("x", "dy", "gamma", "mean", "rstd")),
    (dict(dtype=np.float64), TypeError, "x: dtype float64; accepted: float32, float16, bfloat16"),
    (dict(x=_f(2, 2, 4, 4, 6, dtype=np.int8)), TypeError, "x: dtype int8; accepted"),
    *((dict([(name, _f(2, 2, dtype=np.float16))]), TypeError, f"{name}: dtype float16 does not go with the others")
      for name in ("dy", "gamma", "mean", "rstd")),
    (dict(dtype=np.float16, mean=_f(2, 2)), TypeError, "mean: dtype float32 does not go with the others (x float16, dy float16, gamma float16, mean float32, rstd float16); accepted: one dtype for all"),
    (dict(x=_f(2, 2)), ValueError, "x: rank 2, shape (2, 2); accepted: rank 3 to 8, [N, G, *]"),
    (dict(x=_f(2, 2, 1, 1, 1, 1, 1, 1, 1)), ValueError, "x: rank 9"),
    (dict(dy=_f(2, 2, 4, 4, 5)), ValueError, "dy: shape (2, 2, 4, 4, 5); accepted: (2, 2, 4, 4, 6), the shape of x"),
    (dict(gamma=_f(8)), ValueError, "gamma: shape (8,); accepted: (2, 2, 4, 4, 6), the shape of x (gamma comes broadcast)"),
    (dict(mean=_f(2, 4)), ValueError, "mean: shape (2, 4); accepted: (2, 2), the first two dimensions of x"),
    (dict(mean=_f(2, 2, 1)), ValueError, "mean: shape (2, 2, 1); accepted: (2, 2)"),
    (dict(rstd=_f(4)), ValueError, "rstd: shape (4,); accepted: (2, 2)"),
    (dict(out=_f(2, 2, 4, 24)), ValueError, "out (dx): shape (2, 2, 4, 24); accepted: (2, 2, 4, 4, 6)"),
    (dict(out=np.moveaxis(_f(2, 4, 4, 6, 2), -1, 1)), ValueError, "out (dx): strides"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "message"), PRINTED, ids=range(len(PRINTED)))
def test_printed_formula_names_the_mistake(changes, error, message):
    with pytest.raises(error, match=re.escape(message)):
        _printed(**changes)
    if "out" not in changes:
        arguments = {**cases.grouped(cases.make(CASE, changes.pop("dtype", np.float32)))._asdict(), **changes}
        with pytest.raises(error, match=re.escape(message)):
            groupnorm.formula_gap(**arguments)


FORWARD = [
    (dict(x=None), TypeError, "x: None"),
    (dict(x=_f(2, 8, dtype=np.int64)), TypeError, "x: dtype int64; accepted"),
    (dict(x=_f(8)), ValueError, "x: rank 1"),
    (dict(num_groups=0), ValueError, "num_groups: num_groups = 0 with C = 8 channels; accepted"),
    (dict(num_groups=-2), ValueError, "num_groups: num_groups = -2 with C = 8 channels; accepted"),
    (dict(num_groups=3), ValueError, "num_groups: num_groups = 3 with C = 8 channels; accepted"),
    (dict(num_groups=2.0), TypeError, "num_groups: float 2.0; accepted: a positive int"),
    (dict(num_groups=True), TypeError, "num_groups: bool True"),
    (dict(gamma=_f(2)), ValueError, "gamma: shape (2,); accepted: (8,)"),
    (dict(beta=_f(2, 8)), ValueError, "beta: shape (2, 8); accepted: (8,)"),
    (dict(beta=_f(8, dtype=np.float64)), TypeError, "beta: dtype float64 does not go with the others (x float32, beta float64)"),
    (dict(eps="small"), TypeError, "eps: str 'small'; accepted: a float"),
    (dict(eps=-1e-5), ValueError, "eps: -1e-05; accepted: a finite number, 0 or above"),
    (dict(eps=float("nan")), ValueError, "eps: nan"),
    (dict(eps=10**400), ValueError, "eps: 1000"),
    (dict(out=(None, _f(2, 3), None)), ValueError, "out (mean): shape (2, 3); accepted: (2, 2)"),
    *ACTIVATION,
    (dict(out=(None, None, _f(2, 2, dtype=np.float64))), TypeError, "out (rstd): dtype float64; accepted: float32"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "message"), FORWARD, ids=range(len(FORWARD)))
def test_forward_names_the_mistake(changes, error, message):
    with pytest.raises(error, match=re.escape(message)):
        groupnorm.group_norm(**{"x": _f(2, 8, 4, 6), "num_groups": 2, **changes})


def _outputs():
    return np.full(CASE.shape, 7.0, np.float32), np.full(8, 7.0, np.float32), np.full(8, 7.0, np.float32)


@pytest.mark.parametrize(
    "changes",
    [dict(gamma=_f(2)), dict(dy=_f(2, 8, 4, 5)), dict(mean=_f(2, 3), rstd=_f(2, 3)), dict(num_threads=0)],
    ids=str,
)
def test_nothing_is_written_on_error(changes):
    out = _outputs()
    with pytest.raises((TypeError, ValueError)):
        _backward(out=out, **changes)
    assert all((array == 7.0).all() for array in out)
    wrong = (out[0], out[1], _f(9))
    with pytest.raises(ValueError, match="dbeta"):
        _backward(out=wrong)
    assert (out[0] == 7.0).all()
    assert (out[1] == 7.0).all()


def test_outputs_that_cannot_be_written():
    dx, dgamma, _ = _outputs()
    dx.flags.writeable = False
    with pytest.raises(ValueError, match=r"out \(dx\): a read-only array"):
        _backward(out=(dx, None, None))
    odd = np.zeros(8 * 4 + 1, np.uint8)[1:].view(np.float32)
    with pytest.raises(ValueError, match=r"out \(dgamma\): elements are not aligned"):
        _backward(out=(None, odd, None))
    with pytest.raises(ValueError, match=r"out \(dbeta\): overlaps out \(dgamma\)"):
        _backward(out=(None, dgamma, dgamma))
    both = np.zeros(12, np.float32)
    with pytest.raises(ValueError, match=r"out \(dbeta\): overlaps out \(dgamma\)"):
        _backward(out=(None, both[:8], both[4:]))


def test_overlap_with_inputs_is_refused():
    memory = np.zeros(2 * 8 * 4 * 6 + 1, np.float32)
    first, second = memory[:-1].reshape(CASE.shape), memory[1:].reshape(CASE.shape)
    for name in ("x", "dy"):
        with pytest.raises(ValueError, match=rf"out \(dx\): overlaps {name}; accepted: memory of its own, or exactly"):
            _backward(**{name: first}, out=(second, None, None))
    gamma = _f(8)
    with pytest.raises(ValueError, match=r"out \(dgamma\): overlaps gamma; accepted: memory of its own$"):
        _backward(gamma=gamma, out=(None, gamma, None))
    with pytest.raises(ValueError, match=r"out \(dbeta\): overlaps beta; accepted: memory of its own$"):
        _backward(beta=gamma, activation="swish", out=(None, None, gamma))
    stats = _f(2, 2)
    x = np.zeros((2, 2, 4), np.float32)
    with pytest.raises(ValueError, match=r"out \(mean\): overlaps x"):
        groupnorm.group_norm(x, 2, out=(None, x.reshape(-1)[:4].reshape(2, 2), stats))
    inputs = cases.grouped(cases.make(CASE, np.float32))
    with pytest.raises(ValueError, match=r"out \(dx\): overlaps gamma"):
        _printed(gamma=inputs.gamma, out=inputs.gamma)


@pytest.mark.parametrize("value", ["0", "-3", "many", "1.5", "99999", "2 "])
def test_environment_number_of_threads(monkeypatch, value, threads_kept):
    groupnorm.threads._forced = None
    monkeypatch.setenv("GROUPNORM_NUM_THREADS", value)
    with pytest.raises(
        ValueError, match=re.escape(f"GROUPNORM_NUM_THREADS: {value!r}; accepted: a number from 1 to 1024")
    ):
        _backward()  # fmt: skip
    monkeypatch.setenv("GROUPNORM_NUM_THREADS", "3")
    assert groupnorm.get_num_threads() == 3
    with pytest.raises(ValueError, match="num_threads: 0"):
        groupnorm.set_num_threads(0)
    assert groupnorm.get_num_threads() == 3
    groupnorm.set_num_threads(5)
    assert groupnorm.get_num_threads() == 5

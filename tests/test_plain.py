"""The short way for plain arrays gives what the long way gives, and nothing that the long way refuses."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupnorm import _core, cases, group_norm, group_norm_backward, group_normalization_grad

DTYPES = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)
NAMES = ("plain_group_norm", "plain_group_norm_backward", "plain_group_normalization_grad")
CASE = cases.Case("", (2, 6, 4, 5), 3)
ALL = (True, True, True)


@pytest.fixture
def both_ways(monkeypatch):
    """Runs a call the short way, then the long way; says whether the short way took it, and what each gave."""
    group_norm(np.ones((1, 1), ml_dtypes.bfloat16), 1)  # the first call makes the dtype known

    def run(call):
        taken = []
        with monkeypatch.context() as short:
            for name in NAMES:
                short.setattr(_core, name, _spy(getattr(_core, name), taken))
            first = _outcome(call)
        with monkeypatch.context() as long:
            for name in NAMES:
                long.setattr(_core, name, lambda *_: None)
            second = _outcome(call)
        return taken[-1:] == [True], first, second

    return run


def _spy(function, taken):
    def spy(*args):
        result = function(*args)
        taken.append(result is not None)
        return result

    return spy


def _outcome(call):
    try:
        result = call()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    results = result if isinstance(result, tuple) else (result,)
    return type(result), [None if r is None else (r.dtype, r.shape, r.strides, r.tobytes()) for r in results]


def _inputs(dtype, parameter=None, layout="contiguous"):
    made = cases.make(CASE, dtype, parameter_dtype=dtype if parameter is None else parameter)
    if layout == "contiguous":
        return made
    return made._replace(x=_channels_last(made.x), dy=_channels_last(made.dy))


def _channels_last(x):
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)


@pytest.mark.parametrize("mask", [ALL, (True, False, False), (False, True, True)])
@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
@pytest.mark.parametrize("parameter", [None, np.float32])
@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_arrays_take_the_short_way(both_ways, dtype, parameter, layout, mask):
    if dtype == np.float64 and parameter is not None:
        parameter = np.float64
    x, dy, gamma, mean, rstd = _inputs(dtype, parameter, layout)
    for scale in (gamma, None):
        taken, first, second = both_ways(lambda: group_norm_backward(dy, x, mean, rstd, scale, output_mask=mask))  # noqa: B023
        assert taken
        assert first == second
        out = group_norm_backward(dy, x, mean, rstd, scale, output_mask=mask)
        taken, first, second = both_ways(
            lambda: group_norm_backward(dy, x, mean, rstd, scale, output_mask=mask, out=out)  # noqa: B023
        )
        assert taken
        assert first == second
    taken, first, second = both_ways(lambda: group_norm(x, 3, gamma, None, 1e-5))
    assert taken
    assert first == second
    taken, first, second = both_ways(lambda: group_norm(x, 3, gamma, gamma, 1e-5, out=group_norm(x, 3)))
    assert taken
    assert first == second


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_plain_arrays_of_the_printed_formula(both_ways, dtype):
    x, dy, gamma, mean, rstd = cases.grouped(_inputs(dtype))
    for out in (None, np.empty_like(x)):
        taken, first, second = both_ways(lambda: group_normalization_grad(x, dy, gamma, mean, rstd, out=out))  # noqa: B023
        assert taken
        assert first == second


# What a caller may do to one operand.
CHANGES = {
    "as it is": lambda a: a,
    "none": lambda a: None,
    "a list": lambda a: a.tolist(),
    "float32": lambda a: a.astype(np.float32),
    "float16": lambda a: a.astype(np.float16),
    "int32": lambda a: a.astype(np.int32),
    "byte-swapped": lambda a: a.astype(a.dtype.newbyteorder()),
    "raw": lambda a: a.astype(ml_dtypes.bfloat16).view("V2"),
    "masked": np.ma.masked_array,
    "channels-last": lambda a: _channels_last(a) if a.ndim > 2 else a,
    "fortran": np.asfortranarray,
    "reversed": lambda a: a[::-1],
    "strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "unaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
    "broadcast": lambda a: np.broadcast_to(a[(slice(1),) * a.ndim], a.shape),
    "read-only": lambda a: np.broadcast_to(a, a.shape),
    "shorter": lambda a: a[..., :-1],
    "longer": lambda a: np.concatenate([a, a]),
    "flat": lambda a: a.reshape(-1),
    "another axis": lambda a: a[None],
    "empty": lambda a: a[:0],
}
change = st.sampled_from([*["as it is"] * 8, *CHANGES])
some_dtype = st.sampled_from(DTYPES)
# What an output is made of: the name of an operand, or one of its own, then changed.
given_output = st.none() | st.tuples(st.sampled_from(["own", "own", "x", "dy", "gamma", "mean"]), change)


@settings(max_examples=300, deadline=None)
@given(st.data(), some_dtype, some_dtype)
def test_the_ways_agree_on_anything(data, dtype, parameter):
    operands = _inputs(dtype, parameter)._asdict()
    if data.draw(st.booleans()):
        operands = cases.grouped(_inputs(dtype))._asdict()
    operands = {name: CHANGES[data.draw(change)](array) for name, array in operands.items()}
    out = []
    for shape in (CASE.shape, (6,), (6,)):
        drawn = data.draw(given_output)
        if drawn is None:
            out.append(None)
        else:
            source = np.zeros(shape, dtype) if drawn[0] == "own" else operands[drawn[0]]
            raw = not isinstance(source, np.ndarray) or source.dtype == np.dtype("V2")  # NumPy converts it to nothing
            out.append(source if raw else CHANGES[drawn[1]](source))
    x, dy, gamma, mean, rstd = operands.values()
    mask = data.draw(st.sampled_from([ALL, (True, False, False), (True, True, False)]))
    groups = data.draw(st.sampled_from([1, 2, 3, 4, 0, -1, True, 2.0, None]))
    eps = data.draw(st.sampled_from([1e-5, 0.0, 1, -1.0, float("nan"), None]))
    calls = (
        lambda out: group_norm_backward(dy, x, mean, rstd, gamma, output_mask=mask, out=tuple(out)),
        lambda out: group_norm_backward(dy, x, mean, rstd, gamma, output_mask=mask),
        lambda out: group_normalization_grad(x, dy, gamma, mean, rstd, out=out[0]),
        lambda out: group_norm(x, groups, gamma, gamma, eps, out=tuple(out)),
        lambda out: group_norm(x, groups, gamma, None, eps),
    )
    call = data.draw(st.sampled_from(calls))
    # In place a call changes what it reads: the second run begins where the first began.
    memory = [a for a in (*operands.values(), *out) if isinstance(a, np.ndarray)]
    before = [a.copy() for a in memory]

    def restore():
        for array, old in zip(memory, before, strict=True):
            if array.flags.writeable:
                array[...] = old

    with pytest.MonkeyPatch.context() as patch:
        first = _outcome(lambda: call(out))
        restore()
        for name in NAMES:
            patch.setattr(_core, name, lambda *_: None)
        second = _outcome(lambda: call(out))
        restore()
    assert first == second

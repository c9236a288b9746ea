"""PyTorch on the CPU: its own kernels, and the formula written down and compiled."""

from __future__ import annotations

import contextlib
import functools
import importlib
import shutil
import signal
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from ...spec import Array
from ..contestant import Contestant, Contestants, Rival, Unable
from ..operands import EPS, Operands
from . import formula

# Seconds that torch.compile may take for one setup.
COMPILE_LIMIT = 60


@functools.cache
def _torch() -> Any:
    """PyTorch, and ours on its threads as for whoever uses both: its own would keep the CPUs of ours busy."""
    torch = importlib.import_module("torch")
    importlib.import_module("groupnorm.torch")
    return torch


def _version() -> str:
    return str(_torch().__version__)


def _tensor(array: Array) -> Any:
    """On the same memory, in the same layout."""
    torch = _torch()
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _array(tensor: Any) -> Array:
    """In float32 where NumPy has no such dtype."""
    torch = _torch()
    values: Array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return values


def _first(results: Any) -> Array:
    return _array(results if isinstance(results, _torch().Tensor) else results[0])


def _enter(threads: int) -> Callable[[], None]:
    torch = _torch()
    filler = torch.zeros(2**17)

    def enter() -> None:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
            torch.add(filler, filler)  # starts the threads

    return enter


def _eager(operands: Operands, threads: int) -> Contestants:
    torch, aten, enter = _torch(), _torch().ops.aten, _enter(threads)
    setup = operands.setup
    x, dy, mean, rstd, gamma, beta = (_tensor(array) for array in operands[1:])
    if setup.operator == "printed":  # no operator of PyTorch: the formula in its elementary ones
        form = formula.Form(setup.case.num_groups, lambda a, dtype: a.to(dtype), torch.float32)
        return {"allocating": Contestant(lambda: formula.printed(form, x, dy, gamma, mean, rstd), _first, enter)}
    (n, c), groups = x.shape[:2], setup.case.num_groups
    sizes = (n, c, setup.length, groups)
    if setup.operator == "forward":
        native = aten.native_group_norm
        y, mean_, rstd_ = native(x, gamma, beta, *sizes, EPS)
        return {
            "given": Contestant(
                lambda: native.out(x, gamma, beta, *sizes, EPS, out0=y, out1=mean_, out2=rstd_), _first, enter
            ),
            "allocating": Contestant(lambda: native(x, gamma, beta, *sizes, EPS), _first, enter),
        }
    native = aten.native_group_norm_backward
    arguments = (dy, x, mean, rstd, gamma, *sizes)
    mask = [True, *(setup.operator == "backward" for _ in range(2))]
    calls = {"allocating": Contestant(lambda: native(*arguments, mask), _first, enter)}
    if all(mask):
        out = native(*arguments, mask)
        calls["given"] = Contestant(
            lambda: native.out(*arguments, mask, out0=out[0], out1=out[1], out2=out[2]), _first, enter
        )
    return calls


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """TimeoutError in the middle of what runs, in the main thread alone, or after it where that caught it."""

    def interrupt(*_: object) -> NoReturn:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, interrupt)
    started = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
        if time.monotonic() - started > seconds:
            raise TimeoutError
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _function(operands: Operands) -> Callable[[], Any]:
    """The call to be compiled, as a function of its own: what is compiled is kept with the code it was made from."""
    torch, setup = _torch(), operands.setup
    form = formula.Form(setup.case.num_groups, lambda a, dtype: a.to(dtype), torch.float32)
    x, dy, mean, rstd, gamma, beta = (_tensor(array) for array in operands[1:])

    def forward(x: Any, gamma: Any, beta: Any) -> Any:
        return formula.forward(form, x, gamma, beta, EPS)

    def printed(x: Any, dy: Any, gamma: Any, mean: Any, rstd: Any) -> Any:
        return formula.printed(form, x, dy, gamma, mean, rstd)

    def backward(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any) -> Any:
        return formula.backward(form, dy, x, mean, rstd, gamma, setup.operator == "backward")

    source: Any
    arguments: tuple[Any, ...]
    if setup.operator == "forward":
        source, arguments = forward, (x, gamma, beta)
    elif setup.operator == "printed":
        source, arguments = printed, (x, dy, gamma, mean, rstd)
    else:
        source, arguments = backward, (dy, x, mean, rstd, gamma)
    own = types.FunctionType(source.__code__.replace(), source.__globals__, closure=source.__closure__)
    compiled = torch.compile(own, dynamic=False, fullgraph=True)
    return lambda: compiled(*arguments)


def _compiled(operands: Operands, threads: int) -> Contestants:
    torch, enter = _torch(), _enter(threads)
    config: Any = importlib.import_module("torch._inductor.config")
    config.compile_threads = 1  # in this process, where it can be interrupted
    config.cpp.threads = threads  # they are part of the code
    enter()
    torch.set_num_threads(threads)
    call = _function(operands)
    try:
        with _time_limit(COMPILE_LIMIT):
            call()
    except Exception as error:  # the compiler's are of many kinds
        if isinstance(error, TimeoutError) or "TimeoutError" in str(error):
            raise Unable(f"not compiled within {COMPILE_LIMIT} s") from error
        raise Unable(f"torch.compile: {type(error).__name__}: {str(error).strip().splitlines()[0]}") from error
    return {"allocating": Contestant(call, _first, enter)}


def _compiler_version() -> str:
    version = _version()
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        raise OSError("torch.compile needs a C++ compiler")
    return version


EAGER = Rival("torch", _version, _eager)
COMPILED = Rival("torch.compile", _compiler_version, _compiled)

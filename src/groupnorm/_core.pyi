"""The compiled core (csrc/python/bindings.cc): raw addresses, no checks."""

from typing import Any

import numpy as np
import numpy.typing as npt

MAX_THREADS: int
BUILD: str

def group_normalization_grad(
    dtype: int,
    n: int,
    groups: int,
    length: int,
    x: int,
    dy: int,
    gamma: int,
    mean: int,
    rstd: int,
    dx: int,
    threads: int,
    /,
) -> None: ...
def group_norm_backward(
    dtype: int,
    gamma_dtype: int,
    beta_dtype: int,
    stats_dtype: int,
    layout: int,
    n: int,
    channels: int,
    length: int,
    groups: int,
    dy: int,
    x: int,
    mean: int,
    rstd: int,
    gamma: int,
    beta: int,
    dx: int,
    dgamma: int,
    dbeta: int,
    recenter: bool,
    activation: int,
    swish_scale: float,
    threads: int,
    /,
) -> None: ...
def group_norm(
    dtype: int,
    gamma_dtype: int,
    beta_dtype: int,
    stats_dtype: int,
    layout: int,
    n: int,
    channels: int,
    length: int,
    groups: int,
    x: int,
    gamma: int,
    beta: int,
    eps: float,
    activation: int,
    swish_scale: float,
    y: int,
    mean: int,
    rstd: int,
    threads: int,
    /,
) -> None: ...
def group_norm_backward_part(
    dtype: int,
    gamma_dtype: int,
    beta_dtype: int,
    stats_dtype: int,
    layout: int,
    n: int,
    channels: int,
    length: int,
    groups: int,
    dy: int,
    x: int,
    mean: int,
    rstd: int,
    gamma: int,
    beta: int,
    given: int,
    dx: int,
    dgamma: int,
    dbeta: int,
    sums: int,
    activation: int,
    total_length: int,
    threads: int,
    /,
) -> None: ...
def group_norm_part(
    dtype: int,
    gamma_dtype: int,
    beta_dtype: int,
    stats_dtype: int,
    layout: int,
    n: int,
    channels: int,
    length: int,
    groups: int,
    x: int,
    gamma: int,
    beta: int,
    given: int,
    eps: float,
    activation: int,
    y: int,
    mean: int,
    rstd: int,
    sums: int,
    total_length: int,
    threads: int,
    /,
) -> None: ...
def use_team(parallel: int, thread_number: int, /) -> None: ...
def triad(first: int, second: int, third: int, output: int, size: int, stream: bool, threads: int, /) -> None: ...
def plain_group_normalization_grad(
    x: Any, dy: Any, gamma: Any, mean: Any, rstd: Any, out: Any, threads: int, /
) -> npt.NDArray[Any] | None: ...
def plain_group_norm_backward(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any,
    mask: tuple[bool, bool, bool],
    out: Any,
    threads: int,
    /,
) -> tuple[npt.NDArray[Any] | None, npt.NDArray[Any] | None, npt.NDArray[Any] | None] | None: ...
def plain_group_norm(
    x: Any, num_groups: Any, gamma: Any, beta: Any, eps: Any, out: Any, threads: int, /
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]] | None: ...
def use_torch(torch: Any, /) -> bool: ...
def plain_tensors(tensors: tuple[Any, ...], /) -> bool: ...
def plain_tensors_group_norm_backward(
    may_record: bool, may_negate: bool, threads: int, /, *arguments: Any
) -> tuple[Any, Any, Any] | None: ...
def plain_tensors_group_norm(
    may_record: bool, may_negate: bool, threads: int, /, *arguments: Any
) -> tuple[Any, Any, Any] | None: ...
def register_bfloat16(number: int, /) -> None: ...
def address(array: npt.NDArray[Any], /) -> int: ...
def bfloat16_bits(array: Any, /) -> npt.NDArray[np.uint16] | None: ...
def bfloat16_array(bits: npt.NDArray[np.uint16], /) -> Any: ...
def default_threads() -> int: ...
def isa_list() -> list[tuple[str, bool, bool]]: ...
def current_isa() -> str | None: ...
def select_isa(name: str | None) -> bool: ...

"""How many threads a call may use. Results never depend on it."""

from __future__ import annotations

import operator
import os

from . import _core

_forced: int | None = None


def _check(name: str, num_threads: int) -> int:
    try:
        count = -1 if isinstance(num_threads, bool) else operator.index(num_threads)
    except TypeError:
        count = -1
    if not 1 <= count <= _core.MAX_THREADS:
        raise ValueError(f"{name}: {num_threads!r}; accepted: an int from 1 to {_core.MAX_THREADS}")
    return count


def set_num_threads(num_threads: int) -> None:
    """Let every later call use up to `num_threads` threads, 1 to 1024.

    Raises ValueError for anything else. It counts for the whole process and comes before
    GROUPNORM_NUM_THREADS; the argument `num_threads` of a call comes before both.
    """
    global _forced
    _forced = _check("num_threads", num_threads)


def get_num_threads() -> int:
    """The number of threads that a call may use when it does not say.

    `set_num_threads`, else GROUPNORM_NUM_THREADS, else the CPUs that this process may use by its
    affinity mask and cgroup quota. Raises ValueError when the variable holds something else.
    """
    if _forced is not None:
        return _forced
    threads = _core.default_threads()
    if threads == 0:
        value = os.environ.get("GROUPNORM_NUM_THREADS")
        raise ValueError(f"GROUPNORM_NUM_THREADS: {value!r}; accepted: a number from 1 to {_core.MAX_THREADS}")
    return threads


def resolve(num_threads: int | None) -> int:
    """The number of threads for one call."""
    return get_num_threads() if num_threads is None else _check("num_threads", num_threads)

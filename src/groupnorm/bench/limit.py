"""What memory allows: a triad that reads and writes as much as an operator has to."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..machine import Caches
from .setups import Setup

_LINE = 64


class Limit(NamedTuple):
    """Which multiple of the triad, and why: what one thread keeps between reduce and apply, what it has room for."""

    kind: str
    moves: int
    factor: float
    kept_bytes: int
    share_bytes: int


def kept_bytes(setup: Setup) -> int:
    """The least that has to stay in cache between reduce and apply, so that apply need not read it again.

    A group when contiguous. When channels-last a line of the cache holds several groups: the narrowest slab of whole
    groups that is made of whole lines, all channels where there is none.
    """
    per_group = setup.channels_per_group * setup.itemsize
    groups = 1
    if setup.layout == "channels-last" and setup.length > 1:
        groups = min(setup.case.num_groups, _LINE // math.gcd(_LINE, per_group))
    return setup.reads * groups * per_group * setup.length


def limit_of(setup: Setup, caches: Caches, threads: int) -> Limit:
    """The triad where what has to be kept fits a thread's share of the caches, else one that reads all twice."""
    kept, share = kept_bytes(setup), caches.share(threads)
    once = setup.reads + 1
    if kept <= share:
        return Limit("triad", once, 1.0, kept, share)
    twice = 2 * setup.reads + 1
    return Limit(f"{twice}/{once} triad", twice, twice / once, kept, share)

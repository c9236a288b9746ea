"""oneDNN, as a second opinion."""

from __future__ import annotations

from ..contestant import Contestants, Rival, Unable
from ..operands import Operands


def _version() -> str:
    raise OSError("no")


def _prepare(operands: Operands, threads: int) -> Contestants:
    raise Unable("no")


ONEDNN = Rival("onednn", _version, _prepare)

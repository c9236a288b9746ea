"""The rivals: one file a library, one line here."""

from __future__ import annotations

from ..contestant import Rival
from . import jax, numpy, onednn, torch

RIVALS: dict[str, Rival] = {
    rival.name: rival for rival in (torch.EAGER, torch.COMPILED, jax.JAX, onednn.ONEDNN, numpy.NAIVE)
}

"""Options that several commands share."""

from __future__ import annotations

import click


def parse_shape(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """2,8,4,6 or 2x8x4x6 as a tuple."""
    if value is None:
        return None
    try:
        shape = tuple(int(part) for part in value.replace("x", ",").split(","))
    except ValueError:
        shape = (-1,)
    if min(shape) < 0:
        raise click.BadParameter(f"{value!r}; accepted: sizes such as 2,8,4,6 or 2x8x4x6")
    return shape

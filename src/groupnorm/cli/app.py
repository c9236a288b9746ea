"""The commands by name."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import click

import groupnorm

from .bench import bench
from .cann_home import cann_home
from .compare import compare
from .doctor import doctor
from .explain import explain
from .formula_gap import formula_gap_command
from .golden import golden
from .run import run
from .triton_compile import triton_compile


class ClosedPipe(Exception):
    """The reader of our output has gone."""


@contextlib.contextmanager
def _closed_pipes_told() -> Iterator[None]:
    """click and rich both make exit code 1 of a closed pipe, which is a verdict here."""
    try:
        yield
    except BrokenPipeError as error:
        raise ClosedPipe from error
    except SystemExit as done:
        if isinstance(done.__context__, BrokenPipeError):
            raise ClosedPipe from done.__context__
        raise


class _Commands(click.Group):
    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        with _closed_pipes_told():  # --help and --version print here
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _closed_pipes_told():
            found = super().invoke(ctx)
            sys.stdout.flush()  # what a full disk or a closed pipe refuses is to be known now, not at exit
            return found


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(groupnorm.__version__, message="groupnorm %(version)s")
def app() -> None:
    """The gradient of Group Normalization: right, fast, with the same bits everywhere."""


app.add_command(run)
app.add_command(doctor)
app.add_command(cann_home)
app.add_command(bench)
app.add_command(triton_compile)
app.add_command(golden)
app.add_command(compare)
app.add_command(explain)
app.add_command(formula_gap_command)

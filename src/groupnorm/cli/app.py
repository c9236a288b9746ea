"""The commands by name."""

from __future__ import annotations

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


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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

"""`groupnorm cann-home`: where the host prefix is."""

from __future__ import annotations

import click

from ..aclnn import host_prefix


@click.command("cann-home")
def cann_home() -> None:
    """Print the folder that ASCEND_HOME_PATH has to name: headers and libraries of CANN for this machine's CPU.

    \b
    Example:
      export ASCEND_HOME_PATH=$(groupnorm cann-home)
      . $ASCEND_HOME_PATH/set_env.sh
    """
    click.echo(host_prefix())

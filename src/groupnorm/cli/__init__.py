"""The command `groupnorm`: one module a command, errors on one line, exit code 2."""

from __future__ import annotations

import os
import sys


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits.

    0 done, 1 a verdict of no, 2 an error on one line of stderr, 130 interrupted, 141 the reader of a pipe has gone.
    """
    try:
        import click
        import rich  # noqa: F401

        from .app import ClosedPipe, app
    except ImportError as error:
        _fail(f"{error.name} is not installed; the command line needs the packages of the extra groupnorm[cli]")
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        try:
            app.main(arguments, prog_name="groupnorm", standalone_mode=False)
        except click.exceptions.NoArgsIsHelpError as help_wanted:
            click.echo(help_wanted.format_message())
            sys.exit(2)
    except click.ClickException as error:
        _fail(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except (ClosedPipe, BrokenPipeError):
        _forget_output()
        sys.exit(141)  # as a shell has it for SIGPIPE
    except MemoryError as error:
        _fail(f"not enough memory{f': {error}' if str(error) else ''}")
    except (OSError, TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        _fail(str(error))


def _forget_output() -> None:
    """What is still to be flushed goes nowhere, where else it would be an error at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError):  # a stream without a file
        return
    finally:
        os.close(nowhere)


def _fail(message: str) -> None:
    print(f"groupnorm: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)

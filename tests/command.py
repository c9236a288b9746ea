"""The command line, run in the process of a test."""

from groupnorm.cli import main


def run(capsys, *arguments):
    """Its exit code, stdout and stderr."""
    code = 0
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as error:
        code = error.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err

"""`groupnorm explain`: what a status of ACL or aclnn means."""

from __future__ import annotations

import re
import sys

import click

from ..aclnn.errors import code_name, likely_cause

# By the number's first digits, for a code that no header names.
_KINDS = {
    "100": "a parameter or the state of ACL",
    "107": "the runtime refused a call",
    "148": "ACL's own resources",
    "161": "the caller's arguments to an aclnn function",
    "200": "ACL's resources",
    "207": "the runtime is short of a resource or a feature",
    "300": "ACL's storage",
    "361": "the runtime, called by an aclnn function",
    "500": "an internal error of ACL",
    "507": "the device or its driver",
    "561": "an internal error of an aclnn function",
}


@click.command()
@click.argument("codes", metavar="CODE...", nargs=-1, required=True)
def explain(codes: tuple[str, ...]) -> None:
    """Decode statuses that acl and aclnn functions returned: the macro, and what most often stands behind it.

    CODE is a number, or text that has it, such as a line of a log. Exit code: 0 all are known, 1 one is not.

    \b
    Example:
      groupnorm explain 161001
      groupnorm explain 107002 561002
    """
    unknown = False
    for given in codes:
        found = re.findall(r"(?<![\d.])\d{1,9}(?![\d.])", given)
        if not found:
            raise click.UsageError(f"CODE: {given!r}; accepted: a number such as 161001, or text that has one")
        for digits in found:
            code = int(digits)
            name = "ACL_SUCCESS" if code == 0 else code_name(code)
            unknown |= name == "unknown"
            click.echo(f"{code} {name}")
            cause = "nothing went wrong" if code == 0 else likely_cause(code)
            kind = _KINDS.get(digits[:3], "") if len(digits) == 6 else ""
            if cause:
                click.echo(f"  likely cause: {cause}")
            if kind:
                click.echo(f"  where: {kind}")
            if not cause and name != "unknown":
                click.echo("  likely cause: not known; aclGetRecentErrMsg() and the device's log say more")
    sys.exit(1 if unknown else 0)

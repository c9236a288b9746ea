"""`groupnorm explain`: what a status of ACL or aclnn means."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator

import click

from ..aclnn.errors import code_name, known_codes, likely_cause

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


# Processes, which may have a status's number: "RUNTIME(107002,python):", "pid=107002".
_PROCESS = re.compile(r"\(\d+,|\b[pt]id\W{0,3}\d+", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.:-])\d{6}(?![\w.:-]*\d)")


@click.command()
@click.argument("codes", metavar="CODE...", nargs=-1, required=True)
def explain(codes: tuple[str, ...]) -> None:
    """Decode statuses that acl and aclnn functions returned: the macro, and what most often stands behind it.

    CODE is a number, or text that has one, such as a line of a log; dates, processes and other numbers in it are left
    alone. Exit code: 0 all are known, 1 one is not.

    \b
    Example:
      groupnorm explain 161001
      groupnorm explain 107002 561002
    """
    unknown = False
    for given in codes:
        for code in _codes_in(given):
            name = "ACL_SUCCESS" if code == 0 else code_name(code)
            unknown |= name == "unknown"
            click.echo(f"{code} {name}")
            for line in _said_of(code, name):
                click.echo(f"  {line}")
    sys.exit(1 if unknown else 0)


def _codes_in(given: str) -> list[int]:
    """The number that an argument is; of text, the numbers that are codes or look like codes of a known kind."""
    if re.fullmatch(r"\s*\d{1,9}\s*", given, re.ASCII):
        return [int(given)]
    numbers = [int(digits) for digits in _NUMBER.findall(_PROCESS.sub(" ", given))]
    found = [n for n in dict.fromkeys(numbers) if code_name(n) != "unknown" or str(n)[:3] in _KINDS]
    if not found:
        raise click.UsageError(
            f"CODE: {given!r} has no status of acl or aclnn; accepted: a number such as 161001, or text that has one"
        )
    return found


def _said_of(code: int, name: str) -> Iterator[str]:
    cause = "nothing went wrong" if code == 0 else likely_cause(code)
    if cause:
        yield f"likely cause: {cause}"
    kind = _KINDS.get(str(code)[:3], "") if len(str(code)) == 6 else ""
    if kind:
        yield f"where: {kind}"
    if name == "unknown":
        near = difflib.get_close_matches(str(code), map(str, known_codes()), n=3, cutoff=0.75)
        yield "no header names it" + (f"; there are {', '.join(near)}" if near else "")
    elif not cause:
        yield "likely cause: not known; aclGetRecentErrMsg() and the device's log say more"

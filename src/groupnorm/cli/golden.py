"""`groupnorm golden`: inputs and expected outputs in files."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Iterator
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from .. import cases, files
from ..cases import Case
from ..golden import case_list, run, store
from ..golden.data import FAMILIES
from ..golden.request import NUMERICS, OUTPUTS, OVERFLOWS, PRINTED, STANDARDS, TRUE, Request
from .options import parse_shape

_NAMED = {case.name: case for case in (*cases.LAYERS, *cases.SMALL)}
# Options that hold for what a case list does not say, by the parameter: the field of the case.
_DEFAULTS = {
    "families": "family",
    "seed": "seed",
    "numerics": "numerics",
    "overflow": "overflow",
    "standard": "standard",
}
_SHORT = {PRINTED: "printed", TRUE: "gradient"}


@click.command()
@click.argument("out", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path))
@click.option("--case", "patterns", multiple=True, metavar="PATTERN", help="Named cases, such as tiny or 'sd_*'.")
@click.option(
    "--cases",
    "list_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A case list: TTK's .csv, msopst's .json, or a manifest.json.",
)
@click.option("--shape", callback=parse_shape, help="Of x, e.g. 2,8,4,6: [N, C, *] with --num-groups, else [N, G, *].")
@click.option("--num-groups", type=click.IntRange(1), help="Groups of the C channels of --shape.")
@click.option("--op", type=click.Choice(list(OUTPUTS)), default=PRINTED, show_default=True)
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(list(files.DTYPES)), help="[default: float32]")
@click.option(
    "--family",
    "families",
    multiple=True,
    type=click.Choice(list(FAMILIES)),
    metavar="NAME",
    help="Of data.  [default: community]; --list names them.",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=1, show_default=True)
@click.option(
    "--numerics",
    type=click.Choice(NUMERICS),
    default="float64",
    show_default=True,
    help="The float64 value rounded once; or a model of the kernel, not verified on hardware.",
)
@click.option(
    "--overflow", type=click.Choice(OVERFLOWS), default="inf", show_default=True, help="Of the model's last cast."
)
@click.option(
    "--standard",
    type=click.Choice(STANDARDS),
    default="community",
    show_default=True,
    help="That compare is to judge by.",
)
@click.option("--format", "form", type=click.Choice(list(store.SUFFIXES)), default="npy", show_default=True)
@click.option(
    "--names",
    type=click.Choice(store.NAMINGS),
    default="plain",
    show_default=True,
    help="Of files: x.bin, or as the operator's unit test or msopst has them.",
)
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Cases at a time.")
@click.option("--force", is_flag=True, help="Make all of it again.")
@click.option("--list", "only_list", is_flag=True, help="Print what would be made, and the families of data.")
def golden(
    out: Path,
    patterns: tuple[str, ...],
    list_path: Path | None,
    shape: tuple[int, ...] | None,
    num_groups: int | None,
    op: str,
    dtypes: tuple[str, ...],
    families: tuple[str, ...],
    seed: int,
    numerics: str,
    overflow: str,
    standard: str,
    form: str,
    names: str,
    jobs: int,
    force: bool,
    only_list: bool,
) -> None:
    """Make golden data: inputs and expected outputs of cases, with a manifest, the same bytes on every machine.

    Each case becomes a folder of FOLDER; FOLDER/manifest.json lists them all and is written last. A run that was
    interrupted goes on where it stopped. bfloat16 is uint16 in files.

    \b
    Example:
      groupnorm golden out --case tiny --dtype bfloat16
      groupnorm golden out --shape 2,4,128 --family ramp --format bin --names unit-test
      groupnorm golden out --cases cases.csv --numerics ascend910b --jobs 2
    """
    fields = {"op": op, "seed": seed, "numerics": numerics, "overflow": overflow, "standard": standard}
    if names != "plain" and form != "bin":
        raise click.UsageError(f"--names: {names} with --format {form}; accepted: with --format bin")
    if list_path is not None:
        if patterns or shape or num_groups or _given("op") or len(dtypes) > 1 or len(families) > 1:
            raise click.UsageError(
                "--cases: accepted without --case, --shape, --num-groups or --op, with one --dtype and --family"
            )
        defaults = case_list.Defaults(
            families[0] if families else "community", seed, numerics, overflow, 1e-5, standard
        )
        requests = case_list.read(list_path, defaults)
        _check_defaults(requests, {**fields, "family": defaults.family}, [name for name in _DEFAULTS if _given(name)])
        if dtypes:
            requests = [case_list.with_dtype(request, dtypes[0]) for request in requests]
    else:
        chosen = list(_cases(patterns, shape, num_groups, op))
        product = itertools.product(chosen, dtypes or ("float32",), families or ("community",))
        requests = [_request(case, dtype, family, fields) for case, dtype, family in product]
    if only_list:
        _print_list(requests)
        return
    console = Console(stderr=True)
    made = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("golden", total=len(requests))

        def on_done(name: str, new: bool) -> None:
            if new:
                made.append(name)
            progress.update(bar, description=name, advance=1)

        manifest = run.make_all(out, requests, store.Layout(form, names), jobs=jobs, force=force, on_done=on_done)
    kept = len(requests) - len(made)
    click.echo(f"{manifest}: {len(made)} made" + (f", {kept} there already" if kept else ""))
    if numerics == "ascend910b":
        click.echo(f"numerics ascend910b: {store.MODELLED}")
    if op == PRINTED and list_path is None:
        click.echo(f"the printed formula is not the gradient unless gamma is 1; --op {TRUE} computes that")


def _given(parameter: str) -> bool:
    """Whether the command line names it."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source not in (None, ParameterSource.DEFAULT)


def _check_defaults(requests: list[Request], defaults: dict[str, object], given: list[str]) -> None:
    """An option that every case of the list says otherwise would be passed over."""
    for parameter in given:
        name = _DEFAULTS[parameter]
        found = sorted({str(getattr(request, name)) for request in requests})
        if str(defaults[name]) not in found:
            raise click.UsageError(
                f"--{name}: {defaults[name]}; accepted: none, or {', '.join(found)}, which is what the list says"
            )


def _cases(
    patterns: tuple[str, ...], shape: tuple[int, ...] | None, num_groups: int | None, op: str
) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Name, shape of x as the operator takes it, groups."""
    if not patterns and shape is None:
        raise click.UsageError("no case; accepted: --case, --cases or --shape")
    if shape is None and num_groups is not None:
        raise click.UsageError("--num-groups: accepted with --shape alone")
    for pattern in patterns:
        found = fnmatch.filter(_NAMED, pattern)
        if not found:
            raise click.UsageError(f"--case: {pattern!r}; accepted: a name or a pattern of {', '.join(_NAMED)}")
        for name in found:
            yield _taken(_NAMED[name], op)
    if shape is not None:
        name = "x".join(map(str, shape))
        if num_groups is None:
            if op == TRUE or len(shape) < 3:
                raise click.UsageError(
                    f"--shape: {shape}; accepted: [N, C, *] with --num-groups, or [N, G, *] of rank 3"
                )
            yield name, shape, shape[1]
        else:
            if len(shape) < 2 or shape[1] % num_groups:
                raise click.UsageError(f"--num-groups: {num_groups}, x has shape {shape}; accepted: a divisor of C")
            yield _taken(Case(f"{name}-g{num_groups}", shape, num_groups), op)


def _taken(case: Case, op: str) -> tuple[str, tuple[int, ...], int]:
    if op == TRUE:
        return case.name, case.shape, case.num_groups
    n, c, *rest = case.shape
    return case.name, (n, case.num_groups, c // case.num_groups, *rest), case.num_groups


def _request(case: tuple[str, tuple[int, ...], int], dtype: str, family: str, fields: dict[str, object]) -> Request:
    name, shape, groups = case
    full = f"{name}-{_SHORT[str(fields['op'])]}-{dtype}-{family}-s{fields['seed']}"
    if fields["numerics"] != "float64":
        full += f"-{fields['numerics']}"
    return Request(name=full, shape=shape, num_groups=groups, dtype=dtype, family=family, **fields)  # type: ignore[arg-type]


def _print_list(requests: list[Request]) -> None:
    table = Table(title="cases")
    for column in ("name", "op", "x", "groups", "dtype", "family", "numerics"):
        table.add_column(column)
    for r in requests:
        shape = "x".join(map(str, r.shape))
        table.add_row(*(Text(str(v)) for v in (r.name, r.op, shape, r.num_groups, r.dtype, r.family, r.numerics)))
    console = Console()
    console.print(table)
    console.print("families:", ", ".join(FAMILIES), highlight=False)

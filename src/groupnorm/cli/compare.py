"""`groupnorm compare`: a device's outputs against golden ones."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import files
from ..compare import page, result, source
from ..compare.result import Result
from ..golden.request import STANDARDS
from .options import parse_shape

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_PATH = click.Path(exists=True, path_type=Path)
_OUT = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("got", metavar="GOT", type=_PATH)
@click.argument("golden", metavar="GOLDEN", type=_PATH)
@click.option("--standard", type=click.Choice(STANDARDS), help="[default: the manifest's, else community]")
@click.option("--ulp", type=click.IntRange(0), default=1, show_default=True, help="Of the standard ulp.")
@click.option("--dtype", type=click.Choice(list(files.DTYPES)), help="Of .bin files; bfloat16 also for uint16 arrays.")
@click.option("--shape", callback=parse_shape, help="Of .bin files, e.g. 2,8,4,6.")
@click.option("--num-groups", type=click.IntRange(1), help="Groups of the C channels, for the error per group.")
@click.option("--json", "json_path", type=_OUT, metavar="FILE", help="Everything that was found.")
@click.option("--csv", "csv_path", type=_OUT, metavar="FILE", help="Metrics and verdicts, msaccucmp's column names.")
@click.option("--errors-csv", "errors_path", type=_OUT, metavar="FILE", help="Worst elements, msopst's column names.")
@click.option("--html", "html_path", type=_OUT, metavar="FILE", help="A page with pictures, which needs no network.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Up to so many threads.")
def compare(
    got: Path,
    golden: Path,
    standard: str | None,
    ulp: int,
    dtype: str | None,
    shape: tuple[int, ...] | None,
    num_groups: int | None,
    json_path: Path | None,
    csv_path: Path | None,
    errors_path: Path | None,
    html_path: Path | None,
    threads: int | None,
) -> None:
    """Judge GOT against GOLDEN by a named standard, and show where and why they differ.

    Both are files (.npy, .npz, .bin) or folders; GOLDEN may be a manifest.json of groupnorm golden, which also brings
    the inputs that the standard groupnorm and most guesses at the cause need. Files may be larger than memory.
    Exit code: 0 passed, 1 failed, 2 an error.

    \b
    Example:
      groupnorm compare dx.npy golden/tiny/dx.npy
      groupnorm compare device/ golden/manifest.json --html report.html
      groupnorm compare dx.bin golden.bin --dtype bfloat16 --shape 2,8,4,6 --standard mere-mare
    """
    _keep_freed_memory()
    targets = {"--json": json_path, "--csv": csv_path, "--errors-csv": errors_path, "--html": html_path}
    pairs = source.find_pairs(got, golden, None if dtype is None else files.DTYPES[dtype], shape)
    files.check_targets(targets, source.read_by(pairs))
    if num_groups is not None and pairs[0].case is not None:
        raise click.UsageError(f"--num-groups: {num_groups} with a manifest, which has it; accepted: without one")
    source.check_hashes(source.cases_of(pairs), threads)
    results = []
    for pair in pairs:
        own = pair.case.request.standard if pair.case is not None else "community"
        results.append(result.compare(pair, standard=standard or own, ulp=ulp, num_groups=num_groups, threads=threads))
    if json_path is not None:
        passed = all(r.passed for r in results)
        found = {"passed": passed, "results": [result.to_json(r) for r in results]}
        files.write_text(json_path, json.dumps(found, indent=1, allow_nan=False) + "\n")
    if csv_path is not None:
        files.write_text(csv_path, result.to_csv(results))
    if errors_path is not None:
        files.write_text(errors_path, result.to_errors_csv(results))
    if html_path is not None:
        files.write_text(html_path, page.render(results, pairs))
    _print(results)
    sys.exit(0 if all(r.passed for r in results) else 1)


def _keep_freed_memory() -> None:
    """glibc would give every block's arrays back to the system and clear them again for the next: a third of the time.

    A setting of the process, so it is the command's; other C libraries go without.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for parameter, size in ((_MMAP_THRESHOLD, 1 << 25), (_TRIM_THRESHOLD, 1 << 28)):
            mallopt(parameter, size)


def _print(results: list[Result]) -> None:
    console = Console()
    table = Table(title=Text(f"verdict by {', '.join(sorted({r.standard for r in results}))}"))
    table.add_column("output", overflow="fold")
    for column in ("verdict", "elements", "differing", "largest error"):
        table.add_column(column, justify="right")
    for r in results:
        largest = "inf" if r.totals.nonfinite else f"{r.metrics['MaxAbsoluteError']:.4g}"
        words = [str(r.totals.count), str(r.totals.differing), largest]
        style = "bold green" if r.passed else "bold red"
        table.add_row(Text(r.name), Text("pass" if r.passed else "FAIL", style=style), *words)
    console.print(table)
    shown = results if len(results) == 1 else [r for r in results if not r.passed or r.causes]
    for r in shown[:10]:
        _print_details(console, r)


def _print_details(console: Console, r: Result) -> None:
    metrics = Table(title=Text(f"{r.name}: {'x'.join(map(str, r.shape))} {r.dtype}"), show_header=False)
    for name, value in r.metrics.items():
        metrics.add_row(name, f"{value:.6g}")
    console.print(metrics)
    note = result.finite_note(r) or ("no element: nothing to compare" if r.totals.count == 0 else "")
    if note:
        console.print(note, highlight=False)
    verdicts = Table()
    for column in ("standard", "verdict", "because"):
        verdicts.add_column(column)
    for name, verdict in r.verdicts.items():
        verdicts.add_row(name, "pass" if verdict.passed else "FAIL", Text(verdict.reason))
    console.print(verdicts)
    for cause in r.causes:
        console.print(Text(f"likely cause: {cause.name}: {cause.evidence}"))
    if not r.worst:
        return
    worst = Table(title="worst elements")
    for column in ("index (n, c, ...)", "got", "golden", "error", "of tolerance"):
        worst.add_column(column, justify="right")
    for w in r.worst[:8]:
        index = "(" + ", ".join(map(str, w["index"])) + ")"
        worst.add_row(index, *(f"{w[k]:.6g}" for k in ("got", "golden", "error", "of_tolerance")))
    console.print(worst)

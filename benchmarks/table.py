"""Writes the figures of the stored result into README.md and docs/performance.md, between their markers."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def table(result: dict) -> str:
    """A Markdown table with its conditions."""
    versions, threads = result["versions"], result["threads"]
    lines = [
        "| case | x | dtype, layout | ours, ms | torch, ms | torch / ours | ours / triad |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        ms = row["ms"]
        ours, torch = (f"{ms[name]:.3g} ({ms[name + ' allocating']:.3g})" for name in ("ours", "torch"))
        shape = "x".join(map(str, row["shape"]))
        lines.append(
            f"| {row['case']} | {shape}, G={row['num_groups']} | {row['dtype']}, {row['layout'].replace('_', '-')} | "
            f"{ours} | {torch} | {ms['torch'] / ms['ours']:.2f} | {ms['ours'] / ms['triad']:.2f} |"
        )
    lines += [
        "",
        f"Medians of one run, outputs given (in brackets: allocating). {result['machine']}, {threads['ours']} threads, "
        f"{result['isa']}, torch {versions['torch']}, malloc: {result['malloc']}, {result['date']}, "
        f"`{result['command']}`. The triad reads x and dy and writes dx, the least that memory has to move.",
    ]
    return "\n".join(lines) + "\n"


def acl_table(result: dict) -> str:
    """What the C interface costs."""
    lines = [
        "| float32 x, three outputs | through both phases, µs | the core alone, µs | beyond 1.1 of it, µs |",
        "|---|---:|---:|---:|",
    ]
    for row in result["rows"]:
        through, core, beyond = row["through_us"], row["core_us"], max(row["over_110_percent_us"], 0)
        lines.append(f"| {row['case']} | {through:.1f} | {core:.1f} | {beyond:.1f} |")
    lines += [
        "",
        f"Medians of interleaved calls. {result['machine']}, {result['threads']} threads, {result['isa']}, "
        f"{result['date']}, `{result['command']}`.",
    ]
    return "\n".join(lines) + "\n"


def write(names: tuple[str, ...], marker: str, text: str) -> None:
    """Puts a text between the markers of files."""
    marked = re.compile(rf"(<!-- {marker}: begin -->\n).*?(<!-- {marker}: end -->)", re.DOTALL)
    for name in names:
        path = ROOT / name
        path.write_text(marked.sub(lambda match: match[1] + text + match[2], path.read_text()))


def main() -> None:
    results = ROOT / "benchmarks" / "results"
    write(("README.md", "docs/performance.md"), "benchmark", table(json.loads((results / "backward.json").read_text())))
    write(("docs/performance.md",), "acl", acl_table(json.loads((results / "acl.json").read_text())))


if __name__ == "__main__":
    main()

"""Writes the figures of the stored result into README.md and docs/performance.md, between their markers."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARKED = re.compile(r"(<!-- benchmark: begin -->\n).*?(<!-- benchmark: end -->)", re.DOTALL)


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


def main() -> None:
    text = table(json.loads((ROOT / "benchmarks" / "results" / "backward.json").read_text()))
    for name in ("README.md", "docs/performance.md"):
        path = ROOT / name
        path.write_text(MARKED.sub(lambda match: match[1] + text + match[2], path.read_text()))


if __name__ == "__main__":
    main()

"""Writes the figures of the stored results into README.md and docs, between their markers."""

from __future__ import annotations

import json
import re
from pathlib import Path

from groupnorm.bench.result import against, share_of_limit
from groupnorm.bench.tables import notes, shape_of

ROOT = Path(__file__).parents[1]

# The rows of README.md: case, operator, dtype, layout; with all threads.
CHOSEN = (
    ("sd_unet_320x64", "backward", "float32", "contiguous"),
    ("sd_unet_1280x16", "backward", "float32", "contiguous"),
    ("sd_vae_128x256", "backward", "float32", "contiguous"),
    ("video_vae_128", "backward", "float32", "contiguous"),
    ("resnet_gn_256x56", "backward", "float32", "contiguous"),
    ("detection_256x25", "backward", "float32", "contiguous"),
    ("rank2_4096", "backward", "float32", "contiguous"),
    ("tiny", "backward", "float32", "contiguous"),
    ("sd_unet_320x64", "backward", "mixed", "contiguous"),
    ("sd_unet_320x64", "backward", "float32", "channels-last"),
    ("sd_unet_320x64", "backward", "bfloat16", "channels-last"),
    ("sd_unet_320x64", "forward", "float32", "contiguous"),
    ("sd_unet_320x64", "printed", "float32", "contiguous"),
)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _both(given: float | None, allocating: float | None) -> str:
    return "-" if given is None else f"{given:.2f} ({_ratio(allocating)})"


def table(result: dict, rows: list[dict]) -> str:
    """A Markdown table of some rows."""
    rivals = list(result["rivals"])
    heads = ("ours, ms", "limit, ms", "ours / limit", *(f"{name} / ours" for name in rivals))
    lines = [
        f"| case | x | operator, dtype, layout | threads | {' | '.join(heads)} |",
        f"|---|---|---|{'---:|' * (len(heads) + 1)}",
    ]
    for row in rows:
        ours, bound = row["ms"]["ours"], row["limit"]
        cells = [
            row["case"],
            shape_of(row["shape"], row["num_groups"]),
            f"{row['operator']}, {row['dtype']}, {row['layout']}",
            str(row["threads"]),
            f"{ours['given']['median']:.3g} ({ours['allocating']['median']:.3g})",
            f"{bound['ms']:.3g}" + ("" if bound["factor"] == 1 else f" ({bound['kind']})"),
            _ratio(share_of_limit(row)),
            *(_both(against(row, name, "given"), against(row, name, "allocating")) for name in rivals),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def means(result: dict) -> str:
    """The geometric means."""
    rivals = list(result["rivals"])
    lines = [
        f"| rows | threads | how many | ours / limit | {' | '.join(f'{name} / ours' for name in rivals)} |",
        f"|---|{'---:|' * (len(rivals) + 3)}",
    ]
    for entry in result["summary"]:
        of = entry["rivals / ours"]
        cells = (_both(of[n]["given"], of[n]["allocating"]) if n in of else "-" for n in rivals)
        lines.append(
            f"| {entry['selection']} | {entry['threads']} | {entry['rows']} | {_ratio(entry['ours / limit'])} | "
            f"{' | '.join(cells)} |"
        )
    return "\n".join(lines) + "\n"


def conditions(result: dict) -> str:
    """What goes below the tables."""
    versions = ", ".join(f"{name} {version}" for name, version in result["rivals"].items())
    lines = (
        "Medians, outputs given (in brackets: allocating).",
        *notes(result),
        f"{versions}. `{result['command']}`",
    )
    return " ".join(line if line.endswith((".", "`")) else f"{line}." for line in lines) + "\n"


def short(result: dict) -> str:
    """For README.md."""
    threads = max(row["threads"] for row in result["rows"])
    rows = {
        (row["case"], row["operator"], row["dtype"], row["layout"]): row
        for row in result["rows"]
        if row["threads"] == threads
    }
    chosen = [rows[key] for key in CHOSEN if key in rows]
    return "\n".join((table(result, chosen), means(result), conditions(result)))


def full(result: dict) -> str:
    """For docs/performance.md."""
    return "\n".join((means(result), table(result, result["rows"]), conditions(result)))


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


def training_table(result: dict) -> str:
    """A step of both modules."""
    lines = [
        "| layout | dtype | SiLU | torch, ms | ours, ms | torch / ours | torch / torch again | "
        "of a step in GroupNorm's backward: torch | ours |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        ms, share = row["milliseconds"], row["share"]
        lines.append(
            f"| {row['layout']} | {row['dtype']} | {'with' if row['fused'] else 'without'} | {ms['torch']:.1f} | "
            f"{ms['groupnorm']:.1f} | {row['ratio']:.3f} | {row['ratio_of_equals']:.3f} | "
            f"{share['torch']:.1%} | {share['groupnorm']:.1%} |"
        )
    lines += [
        "",
        f"Medians of steps in turn. {result['machine']}, {result['threads']} threads, torch {result['torch']}, "
        f"{result['date']}, `{result['command']}`.",
    ]
    return "\n".join(lines) + "\n"


def distributed_table(result: dict) -> str:
    """Simulated ranks."""
    lines = [
        "| layer, shared out by | ranks | computing, ms | communicating, ms | bytes received / computed | "
        "times as fast as one rank |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    alone = {}
    for row in result["rows"]:
        key = (row["layer"], row["kind"])
        total = row["compute_s"] + row["communicate_s"]
        first = alone.setdefault(key, total)
        lines.append(
            f"| {row['layer']}, {row['kind']} | {row['ranks']} | {1e3 * row['compute_s']:.3g} | "
            f"{1e3 * row['communicate_s']:.3g} | {row['bytes_received'] / row['bytes_computed']:.1e} | "
            f"{first / total:.3g} |"
        )
    lines += [
        "",
        f"Simulated from measured times: {result['machine']}; latency {1e6 * result['latency_s']:g} µs, bandwidth "
        f"{result['bandwidth_bytes_per_s'] / 1e9:g} GB/s. {result['date']}.",
    ]
    return "\n".join(lines) + "\n"


def write(name: str, marker: str, text: str) -> None:
    """Puts a text between the markers of a file."""
    marked = re.compile(rf"(<!-- {marker}: begin -->\n).*?(<!-- {marker}: end -->)", re.DOTALL)
    path = ROOT / name
    path.write_text(marked.sub(lambda match: match[1] + text + match[2], path.read_text()))


def main() -> None:
    for stored, marker, name, text in (
        ("bench.json", "benchmark", "README.md", short),
        ("bench.json", "benchmark", "docs/performance.md", full),
        ("acl.json", "acl", "docs/performance.md", acl_table),
        ("training.json", "training", "docs/torch.md", training_table),
        ("distributed.json", "distributed", "docs/distributed.md", distributed_table),
    ):
        path = ROOT / "benchmarks" / "results" / stored
        if path.exists():
            write(name, marker, text(json.loads(path.read_text())))
        else:
            print(f"{path}: not there, so {name} stays as it is (make bench measures)")


if __name__ == "__main__":
    main()

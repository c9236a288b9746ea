"""What a comparison found: the vendor tools' metrics, verdicts, worst elements, error per group and channel."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import reference, tolerance
from ..golden.request import PRINTED
from ..reference import Float64
from ..spec import GroupNormGrads, dtype_name
from . import causes, scan
from . import standards as st
from .source import Pair, read_inputs

_WORST_SHOWN = 20
_COUNTS = ("FinitePairs", "NonFiniteAgreeing", "NonFiniteDisagreeing")  # columns of our own
_LARGEST_BOUND = 1 << 24  # elements whose float64 arrays are held at once


@dataclass
class Result:
    """One pair compared; `metrics` has the names of msaccucmp, `verdicts` all standards."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    num_groups: int | None
    standard: str
    verdicts: dict[str, st.Verdict]
    metrics: dict[str, float]
    totals: scan.Totals
    rows: scan.Rows | None
    worst: list[dict[str, Any]]
    causes: list[causes.Cause]

    @property
    def passed(self) -> bool:
        return self.verdicts[self.standard].passed


def compare(pair: Pair, *, standard: str, ulp: int, num_groups: int | None, threads: int | None) -> Result:
    """Compares one pair by every standard and judges it by `standard`.

    ValueError for the standard groupnorm without a manifest, which alone has the inputs that its bound is made of, and
    for a number of groups that does not divide the channels.
    """
    golden = pair.golden
    if standard == "groupnorm" and pair.case is None:
        raise ValueError("--standard: groupnorm without the inputs; accepted: with a manifest as GOLDEN")
    if pair.case is not None and pair.output == "dx":
        num_groups = pair.case.request.num_groups
    totals, rows = scan.scan(pair.got, golden, threads)
    if num_groups is not None and pair.output == "dx" and (len(golden.shape) < 2 or golden.shape[1] % num_groups):
        raise ValueError(f"--num-groups: {num_groups}, GOLDEN has shape {golden.shape}; accepted: a divisor of C")
    bound = _bound(pair) if standard == "groupnorm" else None
    figures = _figures(totals, dtype_name(golden.dtype), bound)
    return Result(
        name=pair.name,
        shape=golden.shape,
        dtype=dtype_name(golden.dtype),
        num_groups=num_groups if pair.output == "dx" else None,
        standard=standard,
        verdicts=st.judge(figures, ulp),
        metrics=_metrics(totals),
        totals=totals,
        rows=rows,
        worst=_worst(pair, totals),
        causes=causes.guess(pair, totals, rows),
    )


def _figures(t: scan.Totals, dtype: str, bound: tuple[int, float] | None) -> st.Figures:
    s, m = t.sums.get, t.maxima.get
    return st.Figures(
        dtype=dtype,
        elements=t.count,
        community_bad=int(s("community_bad", 0)),
        community_over_cap=int(s("over_cap", 0)),
        max_abs=math.inf if t.nonfinite else m("absolute", 0.0),
        mere=math.inf if t.nonfinite else s("mere", 0.0) / max(1, t.finite),
        mare=math.inf if t.nonfinite else m("mare", 0.0),
        per_mille_bad=int(s("per_mille_bad", 0)),
        msopst_bad=int(s("msopst_bad", 0)),
        msopst_max=m("msopst", 0.0),
        max_ulp=m("ulp", 0.0),
        bound_bad=None if bound is None else bound[0],
        bound_ratio=0.0 if bound is None else bound[1],
    )


def _metrics(t: scan.Totals) -> dict[str, float]:
    """msaccucmp's definitions over the pairs that are finite: relative errors where |golden| > 2.2e-16, distances over
    its root of squares."""
    s, m, count = t.sums.get, t.maxima.get, max(1, t.finite)
    square, got, golden, product = (s(n, 0.0) for n in ("square", "got_square", "golden_square", "product"))
    scale = 1.0
    if any(name.startswith("huge_") for name in t.sums):
        scale = scan.HUGE
        huge = (s(f"huge_{n}", 0.0) for n in ("square", "got_square", "golden_square", "product"))
        square, got, golden, product = (
            h + v * scale * scale for h, v in zip(huge, (square, got, golden, product), strict=True)
        )
    # The square of got is golden's plus a difference: of a got that is 0, or nearly, rounding is all that is left.
    got = got if got > 1e-13 * golden else 0.0
    both = math.sqrt(got) * math.sqrt(golden)
    cosine = (1.0 if got == golden == 0 else 0.0) if both == 0 else min(1.0, product / both)
    return {
        "CosineSimilarity": cosine,
        "MaxAbsoluteError": m("absolute", 0.0),
        "AccumulatedRelativeError": s("relative", 0.0),
        "RelativeEuclideanDistance": 0.0 if golden == 0 else math.sqrt(square) / math.sqrt(golden),
        "MeanAbsoluteError": s("absolute", 0.0) / count,
        "RootMeanSquareError": math.sqrt(square / count) / scale,
        "MaxRelativeError": m("relative", 0.0),
        "MeanRelativeError": s("relative", 0.0) / count,
    }


def finite_note(result: Result) -> str:
    """What the metrics leave out; empty where all elements are finite."""
    t = result.totals
    if t.finite == t.count:
        return ""
    return (
        f"metrics are of the {t.finite} elements that are finite on both sides; not finite: "
        f"{t.agreeing} the same on both sides, {t.nonfinite} not the same"
    )


def _worst(pair: Pair, totals: scan.Totals) -> list[dict[str, Any]]:
    """The elements furthest outside the community tolerance, with their (n, c, spatial) index, read again."""
    found = []
    for ratio, index in totals.worst[:_WORST_SHOWN]:
        got, golden = (float(scan.to_float64(side.read(index, index + 1))[0]) for side in (pair.got, pair.golden))
        place = [int(i) for i in np.unravel_index(index, pair.golden.shape)]
        apart = float(np.abs(got - golden)) if math.isfinite(got) and math.isfinite(golden) else math.inf
        entry = {"index": place, "flat": index, "got": got, "golden": golden, "error": apart, "of_tolerance": ratio}
        size = abs(golden)
        entry["relative"] = apart / size if size else math.inf
        found.append(entry)
    return found


def _bound(pair: Pair) -> tuple[int, float]:
    """Elements outside the derived bound of tolerance.py around the float64 truth, and the largest share of it."""
    assert pair.case is not None
    tensors = read_inputs(pair.case)
    if tensors["x"].size > _LARGEST_BOUND:
        raise ValueError(f"--standard: groupnorm with {tensors['x'].size} elements; accepted: at most {_LARGEST_BOUND}")
    if pair.golden.size == 0:
        return 0, 0.0
    inputs = {name: tensor.whole() for name, tensor in tensors.items()}
    got = scan.to_float64(pair.got.whole())
    with np.errstate(all="ignore"):
        if pair.case.request.op == PRINTED:
            truth = reference.group_normalization_grad(**inputs)
            bound = tolerance.printed_bound(**inputs, reference=truth)
        else:
            grads: GroupNormGrads[Float64] = reference.group_norm_backward(
                *(inputs[n] for n in ("dy", "x", "mean", "rstd", "gamma"))
            )
            truth = getattr(grads, pair.output)
            bound = getattr(tolerance.backward_bounds(**inputs, reference=grads), pair.output)
        rounded = tolerance.round_to(truth, pair.golden.dtype)
        # What overflows or is not a number has to be so on both sides; it has no distance.
        odd = ~np.isfinite(rounded)
        same = np.where(np.isnan(rounded), np.isnan(got), got == rounded)
        ratio = np.where(odd, np.where(same, 0, np.inf), np.abs(got - truth) / bound)
        ratio = np.where(np.isnan(ratio), np.inf, ratio)
    return int(np.count_nonzero(ratio > 1)), float(ratio.max())


def error_map(result: Result) -> dict[str, Any] | None:
    """Largest |error| over (n, g) and per channel; None without [N, C] or where there are too many."""
    if result.rows is None:
        return None
    n, c = result.shape[:2]
    groups = result.num_groups or c
    largest = result.rows.largest.reshape(n, c)
    bad = result.rows.bad.reshape(n, c)
    return {
        "groups": groups,
        "largest": largest.reshape(n, groups, c // groups).max(2),
        "bad": bad.reshape(n, groups, c // groups).sum(2),
        "channel": largest.max(0),
        "channel_bad": bad.sum(0),
    }


def _plain(value: Any) -> Any:
    """JSON has no infinity: a string in its place."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def to_json(result: Result) -> dict[str, Any]:
    """Everything, as JSON has it; infinities are strings."""
    t = result.totals
    table = error_map(result)
    found: dict[str, Any] = {
        "name": result.name,
        "shape": list(result.shape),
        "dtype": result.dtype,
        "num_groups": result.num_groups,
        "standard": result.standard,
        "passed": result.passed,
        "verdicts": {name: verdict._asdict() for name, verdict in result.verdicts.items()},
        "metrics": result.metrics,
        "elements": t.count,
        "differing": t.differing,
        "nonfinite": {
            "got": t.got_nonfinite,
            "golden": t.golden_nonfinite,
            "agreeing": t.agreeing,
            "disagreeing": t.nonfinite,
        },
        "finite_pairs": t.finite,
        "note": finite_note(result),
        "ulp_histogram": histogram(result),
        "worst": result.worst,
        "causes": [cause._asdict() for cause in result.causes],
    }
    if table is not None and result.rows is not None and result.rows.largest.size <= 4096:
        found["largest_error_by_group"] = table["largest"].tolist()
        found["largest_error_by_channel"] = table["channel"].tolist()
    plain: dict[str, Any] = _plain(found)
    return plain


def histogram(result: Result) -> list[tuple[str, int]]:
    """Elements by distance in ulp: the label of each bin that is not past the last one used, and its count."""
    counts = result.totals.histogram
    last = int(np.flatnonzero(counts[:-1])[-1]) if counts[:-1].any() else 0
    labels = ["0", "1"] + [f"{1 << (i - 1)}-{(1 << i) - 1}" for i in range(2, scan.BINS - 1)]
    found = [(labels[i], int(counts[i])) for i in range(last + 1)]
    if counts[-1]:
        found.append(("not finite", int(counts[-1])))
    return found


def _cell(text: str) -> str:
    """A name as spreadsheets show it: one that begins like a formula would be computed."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else text


def to_csv(results: list[Result]) -> str:
    """A row a pair, with msaccucmp's column names and the verdict by each standard."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    standards = list(st.judge(_figures(results[0].totals, results[0].dtype, (0, 0.0)), 1))
    out.writerow(
        ["Index", "GroundTruth", "DataType", "Shape", *results[0].metrics, "Standard", "Result", *standards, *_COUNTS]
    )
    for i, r in enumerate(results):
        verdicts = ["" if s not in r.verdicts else "Pass" if r.verdicts[s].passed else "Failed" for s in standards]
        shape = "x".join(map(str, r.shape))
        metrics = [repr(value) for value in r.metrics.values()]
        counts = [r.totals.finite, r.totals.agreeing, r.totals.nonfinite]
        out.writerow(
            [
                i,
                _cell(r.name),
                r.dtype,
                shape,
                *metrics,
                r.standard,
                "Pass" if r.passed else "Failed",
                *verdicts,
                *counts,
            ]
        )
    return text.getvalue()


def to_errors_csv(results: list[Result]) -> str:
    """The worst elements, with the columns of msopst's error report after the name."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(["Name", "Index", "ExpectOut", "RealOut", "FpDiff", "RateDiff"])
    for r in results:
        for w in r.worst:
            out.writerow(
                [_cell(r.name), w["flat"], repr(w["golden"]), repr(w["got"]), repr(w["error"]), repr(w["relative"])]
            )
    return text.getvalue()

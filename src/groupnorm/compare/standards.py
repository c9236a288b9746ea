"""The standards by which results are judged, with their thresholds and sources (docs/precision.md)."""

from __future__ import annotations

from typing import NamedTuple

# community: |got - golden| <= atol + rtol |golden| in 99 % of the elements, and no error above the cap unless it is
# within 32 ulp (experimental_standard.md of opbase).
COMMUNITY = {
    "float64": (2.0**-16, 2.0**-10, 1e-2),  # (atol, rtol, cap); the standard has no float64: float32's
    "float32": (2.0**-16, 2.0**-10, 1e-2),
    "float16": (2.0**-9, 2.0**-9, 1e-1),
    "bfloat16": (2.0**-6, 2.0**-6, 1.0),
}
COMMUNITY_SHARE = 0.99
COMMUNITY_ULP = 32
# mere-mare: mean of |error| / (|golden| + 1e-7) below T, and its largest below 10 T.
MERE = {"float64": 2.0**-13, "float32": 2.0**-13, "float16": 2.0**-10, "bfloat16": 2.0**-7}
MERE_EPS = 1e-7
# double-per-mille: |error| > t |golden| in at most a share t of the elements.
PER_MILLE = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-3, "bfloat16": 1e-3}
# msopst: relative differences above 0.01 in at most 0.05 of the elements, and none of 0.1 or more.
MSOPST_DIFF, MSOPST_SHARE, MSOPST_LARGEST = 0.01, 0.05, 0.1


class Verdict(NamedTuple):
    """What a standard says, and the figures it says it on."""

    standard: str
    passed: bool
    reason: str


class Figures(NamedTuple):
    """What the standards look at, summed up over all elements."""

    dtype: str
    elements: int
    community_bad: int
    community_over_cap: int
    max_abs: float
    mere: float
    mare: float
    per_mille_bad: int
    msopst_bad: int
    msopst_max: float
    max_ulp: float
    bound_bad: int | None  # None where the inputs are not known
    bound_ratio: float


def judge(f: Figures, ulp: int) -> dict[str, Verdict]:
    """Every standard's verdict; groupnorm only where its bound is known."""
    _, _, cap = COMMUNITY[f.dtype]
    count = max(1, f.elements)  # of none, none is bad
    share = 1 - f.community_bad / count
    found = [
        Verdict(
            "community",
            share >= COMMUNITY_SHARE and f.community_over_cap == 0,
            f"{share:.4%} within tolerance (99 %), largest error {f.max_abs:.4g} (cap {cap:g} or {COMMUNITY_ULP} ulp)",
        ),
        Verdict(
            "mere-mare",
            f.mere < MERE[f.dtype] and f.mare < 10 * MERE[f.dtype],
            f"MERE {f.mere:.4g} (below {MERE[f.dtype]:.4g}), MARE {f.mare:.4g} (below {10 * MERE[f.dtype]:.4g})",
        ),
        Verdict(
            "double-per-mille",
            f.per_mille_bad <= PER_MILLE[f.dtype] * f.elements,
            f"{f.per_mille_bad / count:.4%} off by more than {PER_MILLE[f.dtype]:g} ({PER_MILLE[f.dtype]:.2%})",
        ),
        Verdict(
            "msopst",
            f.msopst_bad <= MSOPST_SHARE * f.elements and f.msopst_max < MSOPST_LARGEST,
            f"{f.msopst_bad / count:.4%} off by more than 0.01 (5 %), largest {f.msopst_max:.4g} (below 0.1)",
        ),
        Verdict("ulp", f.max_ulp <= ulp, f"largest distance {f.max_ulp:g} ulp (at most {ulp})"),
    ]
    if f.bound_bad is not None:
        found.append(
            Verdict(
                "groupnorm",
                f.bound_bad == 0,
                f"{f.bound_bad} elements above the derived bound, largest error {f.bound_ratio:.4g} of it",
            )
        )
    return {verdict.standard: verdict for verdict in found}

"""What is asked for: one golden case, and every rule about it."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..cases import Case
from ..files import DTYPES
from ..spec import parameter_dtype

PRINTED = "group_normalization_grad"
TRUE = "group_norm_backward"
INPUTS = ("x", "dy", "gamma", "mean", "rstd")
OUTPUTS = {PRINTED: ("dx",), TRUE: ("dx", "dgamma", "dbeta")}
FORMULAS = {
    PRINTED: "dx = (rstd/M) * gamma * (M*dy - sum(dy*gamma) - xhat*sum(dy*gamma*xhat))",
    TRUE: "dx = rstd * (gamma*dy - mean_g(gamma*dy) - xhat*mean_g(gamma*dy*xhat))",
}
# float64: the exact value rounded once. ascend910b: see ascend910b.py.
NUMERICS = ("float64", "ascend910b")
OVERFLOWS = ("inf", "saturate")
# The standards that groupnorm.compare judges by.
STANDARDS = ("community", "mere-mare", "double-per-mille", "msopst", "ulp", "groupnorm")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
# Of files beside the cases, and what Windows takes for a device.
_RESERVED = re.compile(r"(manifest\.json|case\.json|(con|prn|aux|nul|com\d|lpt\d)(\..*)?)", re.IGNORECASE)
_LARGEST = 2**40  # elements of x; more is a slip of the pen


class Range(NamedTuple):
    """Values of one operand that a case list asks for."""

    distribution: str  # uniform or normal
    low: float
    high: float


@dataclass(frozen=True)
class Request:
    """One golden case: what determines every byte of it.

    `shape` is that of x as the operator takes it: [N, G, *] of rank 3 to 8 for the printed formula, [N, C, *] for the
    gradient. Raises ValueError, naming the field, what came and what is accepted.
    """

    name: str
    op: str
    shape: tuple[int, ...]
    num_groups: int
    dtype: str
    parameter_dtype: str = ""
    family: str = "community"
    seed: int = 1
    numerics: str = "float64"
    overflow: str = "inf"
    eps: float = 1e-5
    standard: str = "community"
    ranges: dict[str, Range] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from .data import FAMILIES

        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(f"name: {self.name!r}; accepted: letters, digits and . _ + -, at most 200")
        if _RESERVED.fullmatch(self.name) or self.name.endswith("."):
            raise ValueError(
                f"name: {self.name!r}; accepted: one that no file of groupnorm and no device has, without . at the end"
            )
        for key, accepted in (
            ("op", tuple(OUTPUTS)),
            ("dtype", tuple(DTYPES) if self.op == TRUE else ("float32", "float16", "bfloat16")),
            ("family", tuple(FAMILIES)),
            ("numerics", NUMERICS),
            ("overflow", OVERFLOWS),
            ("standard", STANDARDS),
        ):
            if getattr(self, key) not in accepted:
                raise ValueError(f"{self.name}: {key}: {getattr(self, key)!r}; accepted: {', '.join(accepted)}")
        self._check_shape()
        data = DTYPES[self.dtype]
        default = self.dtype if self.op == PRINTED else parameter_dtype(data).name
        if not self.parameter_dtype:
            object.__setattr__(self, "parameter_dtype", default)
        accepted_parameters = {self.dtype} | ({"float32"} if self.op == TRUE and data.itemsize == 2 else set())
        if self.parameter_dtype not in accepted_parameters:
            accepted_names = ", ".join(sorted(accepted_parameters))
            raise ValueError(f"{self.name}: parameter_dtype: {self.parameter_dtype!r}; accepted: {accepted_names}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise ValueError(f"{self.name}: seed: {self.seed!r}; accepted: a whole number from 0 to 2^32 - 1")
        if not isinstance(self.eps, float) or not 0 < self.eps < 1:
            raise ValueError(f"{self.name}: eps: {self.eps!r}; accepted: a number between 0 and 1")
        if self.numerics == "ascend910b" and self.op != PRINTED:
            raise ValueError(f"{self.name}: numerics: ascend910b with op {self.op}; accepted: with {PRINTED} alone")
        if self.overflow != "inf" and self.numerics != "ascend910b":
            raise ValueError(
                f"{self.name}: overflow: {self.overflow} with numerics {self.numerics}; accepted: with ascend910b"
            )
        for name, (distribution, low, high) in self.ranges.items():
            if name not in INPUTS or distribution not in ("uniform", "normal"):
                raise ValueError(
                    f"{self.name}: range of {name!r}, {distribution!r}; "
                    f"accepted: uniform or normal, of {', '.join(INPUTS)}"
                )
            if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                raise ValueError(
                    f"{self.name}: range of {name}: {low} to {high}; accepted: two finite numbers in order"
                )

    def _check_shape(self) -> None:
        shape, printed = self.shape, self.op == PRINTED
        whole = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
        low, high = (3, 8) if printed else (2, 8)
        if not whole or not low <= len(shape) <= high or math.prod(shape) > _LARGEST:
            kind = "[N, G, *]" if printed else "[N, C, *]"
            raise ValueError(
                f"{self.name}: shape: {shape}; accepted: {low} to {high} sizes, {kind}, at most 2^40 elements"
            )
        groups = self.num_groups
        if printed:
            if groups != shape[1]:
                raise ValueError(f"{self.name}: num_groups: {groups}; accepted: {shape[1]}, the second size of x")
        elif type(groups) is not int or groups < 1 or shape[1] % groups:
            raise ValueError(f"{self.name}: num_groups: {groups!r}; accepted: a divisor of C = {shape[1]}, 1 or more")

    @property
    def case(self) -> Case:
        """The shape as [N, C, *]."""
        if self.op == TRUE:
            return Case(self.name, self.shape, self.num_groups)
        n, groups, d, *rest = self.shape
        return Case(self.name, (n, groups * d, *rest), groups)

    def dtype_of(self, name: str) -> np.dtype[Any]:
        """The dtype of an input or output."""
        return DTYPES[self.dtype if name in ("x", "dy", "dx") else self.parameter_dtype]

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of an input or output."""
        if name in ("mean", "rstd"):
            return (self.shape[0], self.num_groups)
        if name in ("x", "dy", "dx") or (name == "gamma" and self.op == PRINTED):
            return self.shape
        return self.shape[1:2]

    def to_json(self) -> dict[str, Any]:
        """Every field, as JSON has it."""
        found = asdict(self)
        found["shape"] = list(self.shape)
        found["ranges"] = {name: list(values) for name, values in self.ranges.items()}
        return found


def from_json(entry: Any, where: str) -> Request:
    """The request of a manifest's entry or of a case list of our own; ValueError names `where` and the field."""
    if not isinstance(entry, dict):
        raise ValueError(
            f"{where}: {type(entry).__name__}; accepted: an object with name, op, shape, num_groups, dtype"
        )
    known = set(Request.__dataclass_fields__)
    unknown, missing = sorted(set(entry) - known), sorted({"name", "op", "shape", "num_groups", "dtype"} - set(entry))
    if unknown or missing:
        wrong = f"unknown {', '.join(unknown)}" if unknown else f"{', '.join(missing)} not given"
        raise ValueError(f"{where}: {wrong}; accepted: {', '.join(sorted(known))}")
    fields = dict(entry)
    try:
        fields["shape"] = tuple(fields["shape"])
        fields["ranges"] = {
            name: Range(str(values[0]), float(values[1]), float(values[2]))
            for name, values in fields.get("ranges", {}).items()
        }
        return Request(**fields)
    except (TypeError, AttributeError, IndexError, KeyError) as error:
        raise ValueError(f"{where}: a field has the wrong type ({error}); accepted: what a manifest has") from error
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error

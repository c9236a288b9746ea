"""Case lists: the CSV of TTK (ops-test-kit), the JSON of msopst, and our own JSON.

Both vendors' formats are wider than one operator; what they say that would change the data and that is not honoured
here is refused, not passed over. Fields that only steer their own tools are ignored.
"""

from __future__ import annotations

import ast
import csv
import itertools
import json
import operator
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..files import regular
from .request import PRINTED, TRUE, Range, Request, from_json

# The operands in the order of the aclnn interfaces, which is that of the lists.
_APIS = {
    "aclnnGroupNormalizationGrad": (PRINTED, ("x", "dy", "gamma", "mean", "rstd"), ("dx",)),
    "aclnnGroupNormBackward": (TRUE, ("dy", "x", "mean", "rstd", "gamma"), ("dx", "dgamma", "dbeta")),
}
_OPS = {
    **_APIS,
    "GroupNormalizationGrad": _APIS["aclnnGroupNormalizationGrad"],
    "GroupNormGrad": (TRUE, ("dy", "mean", "rstd", "x", "gamma"), ("dx", "dgamma", "dbeta")),
}
_DTYPES = {"float": "float32", "fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}
# Columns of TTK that would give other data.
_REFUSED = ("manual_tensor_binaries", "manual_golden_binaries", "tensor_view_offsets", "tensor_view_strides")
_MAX_BYTES = 64 * 2**20


class Defaults(NamedTuple):
    """What a list does not say."""

    family: str = "community"
    seed: int = 1
    numerics: str = "float64"
    overflow: str = "inf"
    eps: float = 1e-5
    standard: str = "community"


def read(path: Path, defaults: Defaults) -> list[Request]:
    """The cases of a .csv (TTK) or .json (msopst, a list of our own, a manifest of groupnorm golden).

    Raises ValueError that names the case, the field, what came and what is accepted.
    """
    if path.suffix not in (".csv", ".json"):
        raise ValueError(f"{path}: accepted: a case list that ends in .csv (TTK) or .json (msopst, groupnorm)")
    size = regular("--cases", path).stat().st_size
    if size > _MAX_BYTES:
        raise ValueError(f"{path}: {size} bytes; accepted: a case list of at most {_MAX_BYTES}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not text in UTF-8 ({error.reason}); accepted: a case list") from error
    found = list(_ttk(path, text, defaults) if path.suffix == ".csv" else _json(path, text, defaults))
    if not found:
        raise ValueError(f"{path}: no case; accepted: one case or more")
    return found


def _request(where: str, api: str, shapes: dict[str, Any], dtypes: dict[str, str], **fields: Any) -> Request:
    op, operands, _ = _OPS[api]
    try:
        given = {name: tuple(map(operator.index, shapes[name])) for name in operands if shapes.get(name) is not None}
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: shapes: {shapes}; accepted: whole numbers") from error
    if "x" not in given or "mean" not in given:
        raise ValueError(f"{where}: no shape of x or mean; accepted: shapes of {', '.join(operands)}")
    if len(given["x"]) < 2 or len(given["mean"]) != 2:
        raise ValueError(f"{where}: x {given['x']}, mean {given['mean']}; accepted: x [N, C, *] and mean [N, G]")
    try:
        request = Request(
            op=op,
            shape=given["x"],
            num_groups=given["mean"][1],
            dtype=dtypes["x"],
            parameter_dtype=dtypes["mean"],
            **fields,
        )
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    for name, shape in given.items():
        if shape != request.shape_of(name):
            raise ValueError(f"{where}: {name}: shape {shape}; accepted: {request.shape_of(name)}")
        if dtypes[name] != request.dtype_of(name).name:
            raise ValueError(f"{where}: {name}: dtype {dtypes[name]}; accepted: {request.dtype_of(name).name}")
    return request


def _dtype(where: str, name: Any) -> str:
    found = _DTYPES.get(str(name), str(name))
    if found not in ("float64", "float32", "float16", "bfloat16"):
        raise ValueError(f"{where}: dtype {name!r}; accepted: float64, float32, float16, bfloat16")
    return found


# TTK -----------------------------------------------------------------------------------------------------------------


def _ttk(path: Path, text: str, defaults: Defaults) -> Iterator[Request]:
    rows = csv.DictReader(text.splitlines(), strict=True)
    try:
        columns = rows.fieldnames or []
        missing = [c for c in ("testcase_name", "api_name", "tensor_view_shapes", "tensor_dtypes") if c not in columns]
        if missing:
            raise ValueError(f"{path}: no column {', '.join(missing)}; accepted: the CSV of TTK's aclnn mode")
        for i, row in enumerate(rows):
            yield _ttk_case(f"{path}: row {i + 1} ({row['testcase_name']})", row, defaults)
    except csv.Error as error:
        raise ValueError(f"{path}: line {rows.line_num}: {error}; accepted: CSV") from error


def _literal(where: str, column: str, text: str | None) -> Any:
    if text is None or not text.strip():
        return ()
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError) as error:
        raise ValueError(f"{where}: {column}: {text!r}; accepted: a Python tuple") from error


def _ttk_case(where: str, row: dict[str, str], defaults: Defaults) -> Request:
    api = row["api_name"] or ""
    if api not in _APIS:
        raise ValueError(f"{where}: api_name: {api!r}; accepted: {', '.join(_APIS)}")
    for column in _REFUSED:
        if (row.get(column) or "").strip() not in ("", "()", "None"):
            raise ValueError(f"{where}: {column}: {row[column]!r}; accepted: nothing (data made here, contiguous)")
    _, operands, outputs = _APIS[api]
    shapes = _per_operand(where, "tensor_view_shapes", row["tensor_view_shapes"], operands, outputs)
    dtypes = _per_operand(where, "tensor_dtypes", row["tensor_dtypes"], operands, outputs)
    _check_formats(where, row.get("tensor_formats"))
    ranges = {}
    for name, pair in _per_operand(where, "input_data_ranges", row.get("input_data_ranges"), operands, ()).items():
        if pair is not None and tuple(pair) != (None, None):
            ranges[name] = _range(where, name, "uniform", pair)
    attributes = _literal(where, "attributes", row.get("attributes")) or {}
    request = _request(
        where,
        api,
        shapes,
        {name: _dtype(where, dtypes[name]) for name in operands},
        name=row["testcase_name"],
        ranges=ranges,
        **defaults._asdict(),
    )
    group = attributes.get("group", request.num_groups) if isinstance(attributes, dict) else None
    if group != request.num_groups:
        raise ValueError(f"{where}: attributes: group {group!r}; accepted: {request.num_groups}, as mean has it")
    return request


def _check_formats(where: str, text: str | None) -> None:
    formats = _literal(where, "tensor_formats", text)
    for name in [formats] if isinstance(formats, str) else formats:
        if name not in ("ND", "NCHW", "NCDHW", "NCL"):
            raise ValueError(f"{where}: tensor_formats: {name!r}; accepted: ND, NCHW, NCDHW, NCL")


def _per_operand(
    where: str, column: str, text: str | None, operands: tuple[str, ...], outputs: tuple[str, ...]
) -> dict[str, Any]:
    """One value each: TTK lets a tuple of one stand for all, and outputs follow or are left out."""
    values = _literal(where, column, text)
    values = (values,) if isinstance(values, str) else values
    if not isinstance(values, (tuple, list)) or (column != "input_data_ranges" and not values):
        raise ValueError(f"{where}: {column}: {text!r}; accepted: a tuple with one entry for each tensor")
    if not values:
        return {}
    if len(values) == 1 and column != "tensor_view_shapes":
        values = values * len(operands)
    if len(values) not in range(len(operands), len(operands) + len(outputs) + 1):
        raise ValueError(
            f"{where}: {column}: {len(values)} entries; accepted: {len(operands)}, for {', '.join(operands)}, "
            "and those of outputs"
        )
    return dict(zip(operands, values, strict=False))


# msopst --------------------------------------------------------------------------------------------------------------


def _json(path: Path, text: str, defaults: Defaults) -> Iterator[Request]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error}); accepted: a case list") from error
    if isinstance(found, dict) and isinstance(found.get("cases"), list):
        found = [entry.get("request", entry) if isinstance(entry, dict) else entry for entry in found["cases"]]
    if not isinstance(found, list):
        raise ValueError(f"{path}: {type(found).__name__}; accepted: a list of cases")
    for i, entry in enumerate(found):
        where = f"{path}: case {i}"
        if isinstance(entry, dict) and "input_desc" in entry:
            yield from _msopst_cases(where, entry, defaults)
        else:
            merged = {**defaults._asdict(), **entry} if isinstance(entry, dict) else entry
            yield from_json(merged, where)


def _msopst_cases(where: str, entry: dict[str, Any], defaults: Defaults) -> Iterator[Request]:
    """Lists in a description are alternatives; those of one input are crossed, and inputs go side by side."""
    op, name = entry.get("op"), entry.get("case_name")
    if op not in _OPS:
        raise ValueError(f"{where}: op: {op!r}; accepted: {', '.join(_OPS)}")
    where = f"{where} ({name})"
    operands = _OPS[op][1]
    descriptions = entry["input_desc"]
    if not isinstance(descriptions, list) or len(descriptions) != len(operands):
        count = len(descriptions) if isinstance(descriptions, list) else type(descriptions).__name__
        raise ValueError(f"{where}: input_desc: {count}; accepted: {len(operands)}, for {', '.join(operands)}")
    columns = [list(_alternatives(f"{where}: {n}", d)) for n, d in zip(operands, descriptions, strict=True)]
    counts = {len(column) for column in columns}
    if len(counts) != 1:
        raise ValueError(f"{where}: input_desc: {sorted(counts)} alternatives; accepted: as many for each input")
    for i, row in enumerate(zip(*columns, strict=True)):
        inputs = dict(zip(operands, row, strict=True))
        yield _request(
            where,
            op,
            {n: shape for n, (_, shape, _) in inputs.items()},
            {n: _dtype(where, dtype) for n, (dtype, _, _) in inputs.items()},
            name=f"{name}_sub_case_{i + 1:03d}" if len(columns[0]) > 1 else name,
            ranges={n: Range(*_range(f"{where}", n, *r)) for n, (_, _, r) in inputs.items() if r is not None},
            **defaults._asdict(),
        )


def _alternatives(where: str, description: Any) -> Iterator[tuple[Any, Any, tuple[str, Any] | None]]:
    if not isinstance(description, dict) or "shape" not in description or "type" not in description:
        raise ValueError(f"{where}: no shape or no type; accepted: an object of format, type, shape")
    if description.get("value") is not None or description.get("is_const"):
        raise ValueError(f"{where}: value or is_const; accepted: data_distribute and value_range")
    formats = _as_list(description.get("format", "ND"))
    for name in formats:
        if name not in ("ND", "NCHW", "NCDHW", "NCL"):
            raise ValueError(f"{where}: format: {name!r}; accepted: ND, NCHW, NCDHW, NCL")
    shape = description["shape"]
    shapes = shape if isinstance(shape, list) and shape and isinstance(shape[0], list) else [shape]
    types = _as_list(description["type"])
    distributions = _as_list(description.get("data_distribute", "uniform"))
    value_range = description.get("value_range")
    nested = isinstance(value_range, list) and value_range and isinstance(value_range[0], list)
    ranges = value_range if nested else [value_range]
    assert ranges is not None
    for _, one_shape, one_type, distribution, one_range in itertools.product(
        formats, shapes, types, distributions, ranges
    ):
        yield one_type, one_shape, None if one_range is None else (distribution, one_range)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _range(where: str, name: str, distribution: Any, pair: Any) -> Range:
    try:
        low, high = (float(value) for value in pair)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: range of {name}: {pair!r}; accepted: two numbers") from error
    return Range(str(distribution), low, high)


def with_dtype(request: Request, dtype: str) -> Request:
    """The same case in another dtype."""
    return replace(request, dtype=dtype, parameter_dtype="")

"""Golden cases on disk: a folder a case, written beside its final name and renamed whole, and one manifest over all.

OUT/manifest.json             every case: its request, files, shapes, dtypes, hashes
OUT/CASE/case.json            the same entry of one case; a case that has it is whole
OUT/CASE/x.npy ... dx.npy     or CASE.npz, or .bin under one of the `NAMINGS`
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import groupnorm

from ..files import stored, write, write_text
from ..spec import Array
from .data import make_inputs
from .expected import make_expected
from .request import FORMULAS, INPUTS, OUTPUTS, Request, from_json

FORMAT = "groupnorm-golden-1"
SUFFIXES = {"npy": ".npy", "npz": ".npz", "bin": ".bin"}
# plain: x.bin; unit-test: the operator's own; msopst: numbered.
NAMINGS = ("plain", "unit-test", "msopst")
MODELLED = "modelled from the kernel's source, not verified on hardware"
_UNFINISHED = ".groupnorm-"


class Layout(NamedTuple):
    """How a case lies on disk."""

    format: str = "npy"
    naming: str = "plain"


def file_names(request: Request, layout: Layout) -> dict[str, str]:
    """The file of each input and output of a case, inside its folder."""
    suffix = SUFFIXES[layout.format]
    outputs = OUTPUTS[request.op]
    if layout.format == "npz":
        return dict.fromkeys((*INPUTS, *outputs), f"{request.name}.npz")
    if layout.naming == "unit-test":
        stem = f"{request.dtype}_{{}}_t_{request.op}{suffix}"
        outside = {"dx": "golden"} if len(outputs) == 1 else {name: f"golden_{name}" for name in outputs}
        return {name: stem.format(outside.get(name, name)) for name in (*INPUTS, *outputs)}
    if layout.naming == "msopst":
        inputs = {name: f"{request.name}_input_{i}{suffix}" for i, name in enumerate(INPUTS)}
        return inputs | {name: f"{request.name}_expect_output_{i}{suffix}" for i, name in enumerate(outputs)}
    return {name: name + suffix for name in (*INPUTS, *outputs)}


def sha256(path: Path) -> str:
    """The hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _entry(request: Request, layout: Layout) -> dict[str, Any]:
    """What is known of a case before it is made."""
    entry: dict[str, Any] = {"request": request.to_json(), "layout": layout._asdict()}
    entry["formula"] = FORMULAS[request.op]
    if request.numerics == "ascend910b":
        entry["numerics_note"] = MODELLED
    return entry


def write_case(folder: Path, request: Request, layout: Layout) -> dict[str, Any]:
    """Makes a case and writes `folder`/NAME; nothing is under that name before all of it is there.

    Returns its entry. Raises OSError as the file system does, ValueError for what `Request` refuses.
    """
    target = folder / request.name
    unfinished = Path(tempfile.mkdtemp(prefix=f"{_UNFINISHED}{os.getpid()}-", dir=folder))
    try:
        unfinished.chmod(0o777 & ~_umask())
        inputs = make_inputs(request)
        arrays = {**inputs, **make_expected(request, inputs)}
        names = file_names(request, layout)
        by_file: dict[str, dict[str, Array]] = {}
        for name, array in arrays.items():
            by_file.setdefault(names[name], {})[name] = array
        hashes = {}
        for file_name, held in by_file.items():
            path = unfinished / file_name
            with path.open("wb") as file:
                write(file, path.suffix, held)
            hashes[file_name] = sha256(path)
        entry = _entry(request, layout)
        entry["arrays"] = {
            name: {
                "file": names[name],
                "role": "input" if name in INPUTS else "output",
                "shape": list(array.shape),
                "dtype": array.dtype.name,
                "stored_dtype": stored(array).dtype.name,
                "sha256": hashes[names[name]],
            }
            for name, array in arrays.items()
        }
        (unfinished / "case.json").write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")
        _put_in_place(unfinished, target)
        return entry
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _put_in_place(unfinished: Path, target: Path) -> None:
    """Renames; what was there before goes aside first, since a folder that is not empty cannot be replaced."""
    if not target.exists():
        unfinished.rename(target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f"{_UNFINISHED}{os.getpid()}-", dir=target.parent))
    try:
        target.rename(aside / "old")
        unfinished.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def finished_entry(folder: Path, request: Request, layout: Layout) -> dict[str, Any] | None:
    """The entry of a case that an earlier run has made and that is whole; None where there is none.

    Raises ValueError where something else lies under its name.
    """
    target = folder / request.name
    if not target.exists():
        return None
    try:
        entry: dict[str, Any] = json.loads((target / "case.json").read_text(encoding="utf-8"))
        known = _entry(request, layout)
        same = all(entry.get(key) == value for key, value in known.items())
        arrays = entry["arrays"]
        whole = same and all(sha256(target / held["file"]) == held["sha256"] for held in arrays.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise ValueError(f"{target}: not the case that is asked for, or damaged; accepted: another folder, or --force")
    return entry


def write_manifest(folder: Path, entries: list[dict[str, Any]]) -> Path:
    """The manifest over all cases, written last."""
    path = folder / "manifest.json"
    manifest = {"format": FORMAT, "groupnorm": groupnorm.__version__, "cases": entries}
    write_text(path, json.dumps(manifest, indent=1) + "\n")
    return path


def remove_unfinished(folder: Path) -> None:
    """What runs left behind that were killed; what a living process has begun stays."""
    for path in folder.glob(f"{_UNFINISHED}*-*"):
        pid = path.name.removeprefix(_UNFINISHED).partition("-")[0]
        if pid.isdecimal() and not _alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


class Stored(NamedTuple):
    """A case of a manifest."""

    request: Request
    folder: Path
    arrays: dict[str, dict[str, Any]]


def read_manifest(path: Path) -> Iterator[Stored]:
    """The cases of a manifest.json or case.json; ValueError where it is not one, naming what is wrong."""
    where = str(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error}); accepted: a manifest.json of groupnorm golden") from error
    with contextlib.suppress(AttributeError):
        if "request" in found:
            yield _stored(found, path.parent, where)
            return
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("cases"), list):
        raise ValueError(f"{where}: no {FORMAT} manifest; accepted: a manifest.json of groupnorm golden")
    for i, entry in enumerate(found["cases"]):
        request = entry.get("request") if isinstance(entry, dict) else None
        name = request.get("name") if isinstance(request, dict) else None
        yield _stored(entry, path.parent / name if isinstance(name, str) else path.parent, f"{where}: case {i}")


def _stored(entry: Any, folder: Path, where: str) -> Stored:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: {type(entry).__name__}; accepted: an object with request and arrays")
    request = from_json(entry.get("request"), f"{where}: request")
    arrays = entry.get("arrays")
    wanted = (*INPUTS, *OUTPUTS[request.op])
    if not isinstance(arrays, dict) or any(not isinstance(arrays.get(name), dict) for name in wanted):
        raise ValueError(f"{where}: arrays; accepted: an entry for each of {', '.join(wanted)}")
    for name in wanted:
        file = arrays[name].get("file")
        if not isinstance(file, str) or Path(file).name != file:
            raise ValueError(f"{where}: file of {name}: {file!r}; accepted: a plain file name")
    return Stored(request, folder, arrays)

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
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import groupnorm

from ..files import permissions, regular, stored, write, write_text
from ..spec import Array
from .data import make_inputs
from .expected import make_expected
from .request import FORMULAS, INPUTS, OUTPUTS, Request, from_json

FORMAT = "groupnorm-golden-1"
MANIFEST, CASE_FILE = "manifest.json", "case.json"
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


def sha256(name: str, path: Path) -> str:
    """The hash of a file's bytes; ValueError that begins with `name` where it is no regular file."""
    with regular(name, path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _entry(request: Request, layout: Layout) -> dict[str, Any]:
    """What is known of a case before it is made: all but the hashes."""
    entry: dict[str, Any] = {"request": request.to_json(), "layout": layout._asdict()}
    entry["formula"] = FORMULAS[request.op]
    if request.numerics == "ascend910b":
        entry["numerics_note"] = MODELLED
    names = file_names(request, layout)
    entry["arrays"] = {
        name: {
            "file": names[name],
            "role": "input" if name in INPUTS else "output",
            "shape": list(request.shape_of(name)),
            "dtype": request.dtype_of(name).name,
            "stored_dtype": stored(np.empty(0, request.dtype_of(name))).dtype.name,
        }
        for name in (*INPUTS, *OUTPUTS[request.op])
    }
    return entry


def _digest(entry: dict[str, Any]) -> str:
    """The hash of an entry's own text, so that an edited one is not taken for what was made."""
    text = json.dumps({key: value for key, value in entry.items() if key != "entry_sha256"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write_case(folder: Path, request: Request, layout: Layout) -> dict[str, Any]:
    """Makes a case and writes `folder`/NAME; nothing is under that name before all of it is there.

    A case of ours that is there is replaced. Returns the entry. Raises OSError as the file system does, ValueError for
    what `check_replaceable` refuses.
    """
    target = folder / request.name
    unfinished = Path(tempfile.mkdtemp(prefix=f"{_UNFINISHED}{os.getpid()}-", dir=folder))
    try:
        unfinished.chmod(permissions(0o777))
        inputs = make_inputs(request)
        arrays = {**inputs, **make_expected(request, inputs)}
        entry = _entry(request, layout)
        by_file: dict[str, dict[str, Array]] = {}
        for name, held in entry["arrays"].items():
            by_file.setdefault(held["file"], {})[name] = arrays[name]
        for file_name, content in by_file.items():
            path = unfinished / file_name
            with path.open("wb") as file:
                write(file, path.suffix, content)
            digest = sha256("FOLDER", path)
            for name in content:
                entry["arrays"][name]["sha256"] = digest
        entry["entry_sha256"] = _digest(entry)
        (unfinished / CASE_FILE).write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")
        _put_in_place(unfinished, target)
        return entry
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def check_replaceable(target: Path) -> list[Path]:
    """The files that --force may delete: those that the case.json of a case of ours names, and nothing else.

    Raises ValueError for a file, a link, a folder without a case.json of ours, and one that holds anything besides.
    """
    advice = "accepted: another folder"
    if target.is_symlink() or not target.is_dir():
        raise ValueError(f"--force: {target} is no folder that groupnorm golden made; {advice}")
    there = sorted(target.iterdir())
    if not there:
        return []
    if target / CASE_FILE not in there:
        raise ValueError(f"--force: {target} has no {CASE_FILE} of groupnorm golden, but {there[0].name}; {advice}")
    (case,) = read_manifest(target / CASE_FILE, single=True)
    ours = {target / CASE_FILE, *case.files()}
    for path in there:
        if path not in ours or path.is_symlink() or not path.is_file():
            raise ValueError(f"--force: {target} holds {path.name}, which groupnorm golden did not write; {advice}")
    return there


def _put_in_place(unfinished: Path, target: Path) -> None:
    """Renames; what was there before goes aside first, since a folder that is not empty cannot be replaced."""
    if not os.path.lexists(target):
        unfinished.rename(target)
        return
    old = check_replaceable(target)
    aside = Path(tempfile.mkdtemp(prefix=f"{_UNFINISHED}{os.getpid()}-", dir=target.parent)) / "old"
    try:
        target.rename(aside)
        try:
            unfinished.rename(target)
        except BaseException:
            aside.rename(target)
            raise
        for path in old:
            (aside / path.name).unlink()
        aside.rmdir()
    finally:
        with contextlib.suppress(OSError):
            aside.parent.rmdir()


def finished_entry(folder: Path, request: Request, layout: Layout) -> dict[str, Any] | None:
    """The entry of a case that an earlier run has made and that is whole; None where there is none.

    The entry has to be the one that this request gives, unedited, and every file has to have the hash that it says.
    Raises ValueError that says what differs.
    """
    target = folder / request.name
    if not os.path.lexists(target):
        return None
    advice = "accepted: another folder, or --force"
    try:
        entry = json.loads(regular("FOLDER", target / CASE_FILE).read_text(encoding="utf-8"))
        hashes = {name: held["sha256"] for name, held in entry["arrays"].items()}
        intact = entry["entry_sha256"] == _digest(entry)
        asked = _entry(request, layout)
        for name, held in asked["arrays"].items():
            held["sha256"] = hashes.get(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{target}: no case, or damaged ({error or type(error).__name__}); {advice}") from error
    if not intact:
        raise ValueError(f"{target}: {CASE_FILE} was edited or damaged; {advice}")
    if {key: value for key, value in entry.items() if key != "entry_sha256"} != asked:
        raise ValueError(f"{target}: not the case that is asked for; {advice}")
    for held in {held["file"]: held for held in asked["arrays"].values()}.values():
        path = target / held["file"]
        if not path.exists() or sha256("FOLDER", path) != held["sha256"]:
            raise ValueError(f"{target}: {held['file']} is missing or damaged; {advice}")
    return dict(entry)


def check_manifest(folder: Path) -> None:
    """ValueError where a manifest.json is there that is not ours: it would be replaced."""
    path = folder / MANIFEST
    if os.path.lexists(path):
        try:
            list(read_manifest(regular("FOLDER", path)))
        except ValueError as error:
            raise ValueError(f"FOLDER: {error}, or another folder") from error


def write_manifest(folder: Path, entries: list[dict[str, Any]]) -> Path:
    """The manifest over all cases, written last."""
    path = folder / MANIFEST
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
    manifest: Path

    def files(self) -> dict[Path, str]:
        """Its files, with the hashes that the manifest has."""
        return {self.folder / held["file"]: held["sha256"] for held in self.arrays.values()}


def read_manifest(path: Path, *, single: bool = False) -> Iterator[Stored]:
    """The cases of a manifest.json or case.json (`single`: of a case.json alone).

    ValueError where it is not one, naming what is wrong.
    """
    where = str(path)
    try:
        found = json.loads(regular("GOLDEN", path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error}); accepted: a manifest.json of groupnorm golden") from error
    with contextlib.suppress(AttributeError):
        if "request" in found:
            yield _stored(found, path.parent, path, where)
            return
    ours = isinstance(found, dict) and found.get("format") == FORMAT and isinstance(found.get("cases"), list)
    if single or not ours:
        raise ValueError(f"{where}: no {FORMAT} manifest; accepted: a manifest.json of groupnorm golden")
    for i, entry in enumerate(found["cases"]):
        request = entry.get("request") if isinstance(entry, dict) else None
        name = request.get("name") if isinstance(request, dict) else None
        yield _stored(entry, path.parent / name if isinstance(name, str) else path.parent, path, f"{where}: case {i}")


def _stored(entry: Any, folder: Path, manifest: Path, where: str) -> Stored:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: {type(entry).__name__}; accepted: an object with request and arrays")
    request = from_json(entry.get("request"), f"{where}: request")
    arrays = entry.get("arrays")
    wanted = (*INPUTS, *OUTPUTS[request.op])
    if not isinstance(arrays, dict) or any(not isinstance(arrays.get(name), dict) for name in wanted):
        raise ValueError(f"{where}: arrays; accepted: an entry for each of {', '.join(wanted)}")
    arrays = {name: arrays[name] for name in wanted}
    for name in wanted:
        digest = arrays[name].get("sha256")
        if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
            raise ValueError(f"{where}: sha256 of {name}: {digest!r}; accepted: 64 digits, as groupnorm golden writes")
        file = arrays[name].get("file")
        if not isinstance(file, str) or Path(file).name != file:
            raise ValueError(f"{where}: file of {name}: {file!r}; accepted: a plain file name")
    return Stored(request, folder, arrays, manifest)

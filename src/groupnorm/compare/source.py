"""Arrays in files that may be larger than memory, and which of two sides belong together."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..files import DTYPES, regular
from ..golden.request import INPUTS, OUTPUTS
from ..golden.store import Layout, Stored, file_names, read_manifest, sha256
from ..spec import DTYPE_NAMES, Array


class Tensor(NamedTuple):
    """An array in a file: read in pieces, never mapped, so that memory stays what the pieces need."""

    name: str
    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    held: Array | None = None  # of an archive, whose members are read whole

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def read(self, start: int, stop: int) -> Array:
        """Elements `start` to `stop` in order of memory."""
        if self.held is not None:
            return self.held.reshape(-1)[start:stop]
        found = np.fromfile(self.path, self.dtype, stop - start, offset=self.offset + start * self.dtype.itemsize)
        if found.size != stop - start:
            raise ValueError(f"{self.name}: {self.path} became shorter while it was read")
        return found

    def whole(self) -> Array:
        return self.read(0, self.size).reshape(self.shape)


class Pair(NamedTuple):
    """An output of the device and its golden one; `case` is known where a manifest is."""

    name: str
    got: Tensor
    golden: Tensor
    case: Stored | None
    output: str


def default_workers() -> int:
    """Threads where nobody says how many: one for each CPU of this process, 8 at most."""
    return min(8, len(os.sched_getaffinity(0)))


def open_tensor(
    side: str,
    path: Path,
    *,
    name: str = "",
    dtype: np.dtype[Any] | None = None,
    shape: tuple[int, ...] | None = None,
) -> Tensor:
    """An array of a .npy, .npz or .bin file, as `dtype` and `shape` where the file does not say.

    Raises ValueError or TypeError naming the side (GOT or GOLDEN), the file, what it holds and what is accepted.
    """
    regular(side, path)
    if path.suffix == ".bin":
        return _open_bin(side, path, dtype, shape)
    if path.suffix == ".npz":
        return _open_npz(side, path, name, dtype)
    if path.suffix != ".npy":
        raise ValueError(f"{side}: {path}; accepted: a file that ends in .npy, .npz or .bin, or a folder or a manifest")
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            found_shape, fortran, found_dtype = read(file)
            offset = file.tell()
    except OSError:
        raise
    except Exception as error:  # a damaged header fails in many ways
        raise ValueError(f"{side}: {path} cannot be read as .npy: {error or type(error).__name__}") from error
    if fortran and len(found_shape) > 1:
        raise ValueError(f"{side}: {path} is in Fortran order; accepted: C order")
    expected = math.prod(found_shape) * found_dtype.itemsize
    size = path.stat().st_size - offset
    if size != expected or min(found_shape, default=0) < 0:
        raise ValueError(f"{side}: {path} has {size} bytes of data; accepted: {expected}, which its header promises")
    return Tensor(side, path, found_shape, _as_float(side, path, found_dtype, dtype), offset)


def _open_bin(side: str, path: Path, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None) -> Tensor:
    size = path.stat().st_size
    if dtype is None:
        raise ValueError(f"{side}: {path} has no header; accepted: .bin files with --dtype, or a manifest")
    if shape is None:
        if size % dtype.itemsize or size == 0:
            some = f"a multiple of {dtype.itemsize} ({dtype})"
            raise ValueError(f"{side}: {path} has {size} bytes; accepted: {some}, or none with --shape that has a 0")
        shape = (size // dtype.itemsize,)
    expected = math.prod(shape) * dtype.itemsize
    if size != expected:
        raise ValueError(f"{side}: {path} has {size} bytes; accepted: {expected} ({dtype}) for shape {shape}")
    return Tensor(side, path, shape, dtype, 0)


def _open_npz(side: str, path: Path, name: str, dtype: np.dtype[Any] | None) -> Tensor:
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = archive.files
            chosen = name or ("dx" if "dx" in names else names[0] if len(names) == 1 else "")
            if chosen not in names:
                raise ValueError(f"no array {chosen or 'dx'} among {', '.join(names) or 'none'}")
            array = archive[chosen]
            if not isinstance(array, np.ndarray):
                raise ValueError(f"{chosen} is no array; accepted: members in the format of .npy")
    except (OSError, MemoryError):
        raise
    except Exception as error:  # NumPy, zipfile and zlib each have their own for a damaged file
        raise ValueError(f"{side}: {path} cannot be read as .npz: {error or type(error).__name__}") from error
    found = _as_float(side, path, array.dtype, dtype)
    return Tensor(side, path, array.shape, found, 0, np.ascontiguousarray(array).view(found))


def _as_float(side: str, path: Path, found: np.dtype[Any], asked: np.dtype[Any] | None) -> np.dtype[Any]:
    """The dtype of a file, bfloat16 out of its stand-ins."""
    bfloat16 = DTYPES["bfloat16"]
    if found == np.dtype("V2") or (found == np.uint16 and asked == bfloat16):
        return bfloat16
    if found == np.uint16:
        raise TypeError(f"{side}: {path} has dtype uint16; accepted: uint16 only as bfloat16, with --dtype bfloat16")
    if found not in DTYPES.values():
        raise TypeError(f"{side}: {path} has dtype {found}; accepted: {', '.join(DTYPE_NAMES)}, native byte order")
    if asked is not None and found != asked:
        raise TypeError(f"{side}: {path} has dtype {found}; accepted: {asked}")
    return found


def find_pairs(got: Path, golden: Path, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None) -> list[Pair]:
    """What to compare: two files; two folders by file name; or a folder against a manifest or the folder it is in.

    ValueError where the sides do not fit together.
    """
    for side, path in (("GOT", got), ("GOLDEN", golden)):
        if not path.is_dir():
            regular(side, path)
    manifest = golden if golden.suffix == ".json" else None
    if golden.is_dir():
        manifest = next((golden / n for n in ("manifest.json", "case.json") if (golden / n).is_file()), None)
    if manifest is not None:
        for option, value in (("--dtype", dtype), ("--shape", shape)):
            if value is not None:
                raise ValueError(f"{option}: {value} with {manifest}, which says it; accepted: without a manifest")
        return list(_by_manifest(got, manifest))
    pairs = _without_manifest(got, golden, dtype, shape)
    if shape is not None and not any(side.path.suffix == ".bin" for pair in pairs for side in (pair.got, pair.golden)):
        raise ValueError(f"--shape: {shape} with {golden}, which says its shape; accepted: with .bin files alone")
    return pairs


def _without_manifest(
    got: Path, golden: Path, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None
) -> list[Pair]:
    if golden.is_dir():
        return _by_name(got, golden, dtype, shape)
    if got.is_dir():
        raise ValueError(f"GOT: {got} is a folder, GOLDEN {golden} a file; accepted: two files or two folders")
    pair = Pair(
        got.name,
        open_tensor("GOT", got, dtype=dtype, shape=shape),
        open_tensor("GOLDEN", golden, dtype=dtype, shape=shape),
        None,
        "dx",
    )
    return [_checked(pair)]


def _checked(pair: Pair) -> Pair:
    got, golden = pair.got, pair.golden
    if got.dtype != golden.dtype:
        raise TypeError(f"GOT: {got.path} has dtype {got.dtype}; accepted: {golden.dtype}, that of {golden.path}")
    if got.shape != golden.shape:
        raise ValueError(f"GOT: {got.path} has shape {got.shape}; accepted: {golden.shape}, that of {golden.path}")
    return pair


def _by_name(got: Path, golden: Path, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None) -> list[Pair]:
    if not got.is_dir():
        raise ValueError(f"GOT: {got} is a file, GOLDEN {golden} a folder; accepted: two files or two folders")
    files = sorted(p for p in golden.rglob("*") if p.suffix in (".npy", ".bin", ".npz"))
    if not files:
        raise ValueError(f"GOLDEN: {golden} holds no array; accepted: a folder of .npy, .npz or .bin files")
    pairs = []
    for path in files:
        other = got / path.relative_to(golden)
        if not other.is_file():
            raise ValueError(f"GOT: no {other}; accepted: a file for each of GOLDEN")
        name = str(path.relative_to(golden))
        tensors = [open_tensor(s, p, dtype=dtype, shape=shape) for s, p in (("GOT", other), ("GOLDEN", path))]
        pairs.append(_checked(Pair(name, tensors[0], tensors[1], None, "dx")))
    return pairs


def _by_manifest(got: Path, manifest: Path) -> list[Pair]:
    """Each output of each case; those of the device lie where a case's golden ones would, or beside each other."""
    stored = list(read_manifest(manifest))
    if not stored:
        raise ValueError(f"GOLDEN: {manifest} has no case; accepted: one case or more")
    pairs = []
    for case in stored:
        for output in OUTPUTS[case.request.op]:
            path = _find_output(got, case, output, single=len(stored) == 1)
            dtype, shape = case.request.dtype_of(output), case.request.shape_of(output)
            tensors = []
            for side, file in (("GOT", path), ("GOLDEN", case.folder / case.arrays[output]["file"])):
                tensor = open_tensor(side, file, name=output, dtype=dtype, shape=shape)
                if tensor.size == math.prod(shape):
                    tensor = tensor._replace(shape=shape)  # [N, C, *] or flat for [N, G, D, *]
                if tensor.shape != shape:
                    raise ValueError(f"{side}: {file} has shape {tensor.shape}; accepted: {shape}")
                tensors.append(tensor)
            name = case.request.name if output == "dx" else f"{case.request.name}:{output}"
            pairs.append(_checked(Pair(name, tensors[0], tensors[1], case, output)))
    return pairs


def _find_output(got: Path, case: Stored, output: str, *, single: bool) -> Path:
    """The device's file of an output: got/CASE/FILE, got/CASE.SUFFIX, or got/FILE and got itself for a single case."""
    if got.is_file():
        if single and (output == "dx" or got.suffix == ".npz"):
            return got
        raise ValueError(f"GOT: {got} is a file, GOLDEN a manifest of several outputs; accepted: a folder")
    name = case.request.name
    device = file_names(case.request, Layout("bin", "unit-test"))[output].replace("golden", "output", 1)
    plain: list[str] = [case.arrays[output]["file"], device, *(f"{output}{s}" for s in (".npy", ".bin")), f"{name}.npz"]
    places = [got / name / file for file in plain]
    if output == "dx":
        places += [got / f"{name}{suffix}" for suffix in (".npy", ".bin")]
    places.append(got / f"{name}.npz")
    if single:
        places += [got / file for file in plain]
    for place in places:
        if place.is_file():
            return place
    raise ValueError(f"GOT: no output {output} of case {name} in {got}; accepted: such as {places[0]}")


def read_inputs(case: Stored, names: tuple[str, ...] = INPUTS) -> dict[str, Tensor]:
    """The inputs of a case, not read yet."""
    request = case.request
    return {
        name: open_tensor(
            "GOLDEN",
            case.folder / case.arrays[name]["file"],
            name=name,
            dtype=request.dtype_of(name),
            shape=request.shape_of(name),
        )
        for name in names
    }


def cases_of(pairs: list[Pair]) -> list[Stored]:
    """The cases of a manifest that pairs belong to."""
    return list({pair.case.folder: pair.case for pair in pairs if pair.case is not None}.values())


def read_by(pairs: list[Pair]) -> list[Path]:
    """Every file that a comparison reads."""
    of_cases = [path for case in cases_of(pairs) for path in (case.manifest, *case.files())]
    return [*(side.path for pair in pairs for side in (pair.got, pair.golden)), *of_cases]


def check_hashes(cases: list[Stored], threads: int | None = None) -> None:
    """Whether the files of cases are those that their manifest has; ValueError that names the first that is not."""
    wanted = [(case, path, digest) for case in cases for path, digest in case.files().items()]
    with ThreadPoolExecutor(threads or default_workers()) as pool:
        found = pool.map(lambda entry: sha256("GOLDEN", entry[1]), wanted)
        for (case, path, digest), came in zip(wanted, found, strict=True):
            if came != digest:
                what = f"{path} is not the file that {case.manifest} was written with"
                raise ValueError(f"GOLDEN: {what}: sha256 {came[:16]}...; accepted: {digest[:16]}...")

"""Arrays in files: .npy, .npz and raw .bin in, and out without ever leaving half a file behind.

bfloat16 is kept as uint16 in all of them; two raw bytes, which NumPy makes of an ml_dtypes array, are read too.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

import ml_dtypes
import numpy as np

from .spec import DTYPE_NAMES, Array

SUFFIXES = (".npy", ".npz", ".bin")
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {name: _BFLOAT16 if name == "bfloat16" else np.dtype(name) for name in DTYPE_NAMES}


def _described(name: str, path: Path, error: Exception) -> ValueError:
    reason = str(error) or type(error).__name__
    return ValueError(f"{name}: {path} cannot be read as {path.suffix or 'an array'}: {reason}")


def read_npz(path: Path, names: tuple[str, ...]) -> dict[str, Array]:
    """The arrays of `names` that the archive holds."""
    regular("FILE", path)
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("not an archive (a single array goes with its name, as --x FILE)")
        with archive:
            found = {name: archive[name] for name in names if name in archive.files}
        for name, array in found.items():
            if not isinstance(array, np.ndarray):
                raise ValueError(f"its member {name} is not an array")
        return found
    except (OSError, MemoryError):
        raise
    except Exception as error:  # NumPy, zipfile, zlib and tokenize each have their own for a damaged file
        raise _described("FILE", path, error) from error


def read_npy(name: str, path: Path) -> Array:
    """The array of a .npy file, mapped: a header that promises more than the file holds is an error."""
    regular(name, path)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a damaged header fails in many ways
        raise _described(name, path, error) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise _described(name, path, ValueError("an archive; give it as FILE"))
    return np.array(array)


def read_bin(name: str, path: Path, shape: tuple[int, ...], dtypes: tuple[np.dtype[np.generic], ...]) -> Array:
    """Raw little-endian elements of `shape`; the size of the file tells which of `dtypes`."""
    count, size = math.prod(shape), regular(name, path).stat().st_size
    for dtype in dtypes:
        if size == count * dtype.itemsize:
            return np.fromfile(path, dtype).reshape(shape)
    wanted = " or ".join(f"{count * dtype.itemsize} ({dtype})" for dtype in dtypes)
    raise ValueError(f"{name}: {path} has {size} bytes; accepted: {wanted} for shape {shape}")


def as_dtype(name: str, array: Array, dtype: np.dtype[np.generic] | None) -> Array:
    """bfloat16 out of its stand-ins in files.

    TypeError for uint16 that is not said to be bfloat16.
    """
    if array.dtype == np.uint16:
        if dtype != _BFLOAT16:
            raise TypeError(f"{name}: dtype uint16; accepted: uint16 only as bfloat16, with --dtype bfloat16")
        return array.view(_BFLOAT16)
    return array.view(_BFLOAT16) if array.dtype == np.dtype("V2") else array


def stored(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint16) if array.dtype == _BFLOAT16 else array


def write(file: IO[bytes], suffix: str, arrays: Mapping[str, Array]) -> None:
    if suffix == ".npz":
        np.savez(file, **{n: stored(a) for n, a in arrays.items()})  # type: ignore[arg-type]  # the stub takes them for allow_pickle
        return
    (array,) = arrays.values()
    if suffix == ".npy":
        np.save(file, stored(array), allow_pickle=False)
    else:
        file.write(np.ascontiguousarray(array).tobytes())


def regular(name: str, path: Path) -> Path:
    """`path` itself; ValueError for a pipe, a device or a folder: reading one may never end."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise ValueError(f"{name}: {path} is {_kind(mode)}; accepted: a regular file")
    return path


def _kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def check_targets(targets: Mapping[str, Path | None], inputs: Iterable[Path] = ()) -> None:
    """Files that are about to be written, by the option that names them.

    Raises ValueError for one without a folder, one that is there and is no regular file, one that two options name and
    one that is read. A link counts as what it leads to, which is where `whole` writes.
    """
    read = {(found.st_dev, found.st_ino): path for path in inputs if path.exists() and (found := path.stat())}
    taken: dict[Path, str] = {}
    for option, path in targets.items():
        if path is None:
            continue
        place = Path(os.path.realpath(path))
        if not place.parent.is_dir():
            raise ValueError(f"{option}: {path}; accepted: a folder that exists")
        if place.exists():
            found = regular(option, path).stat()
            same = read.get((found.st_dev, found.st_ino))
            if same is not None:
                raise ValueError(f"{option}: {path} is read here, as {same}; accepted: another file")
        other = taken.setdefault(place, option)
        if other != option:
            raise ValueError(f"{option}: {path} is the file of {other} too; accepted: a file of its own for each")


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A file to write in the place of `path`: it takes that name when the block is through, and goes when that raises.

    Where `path` is a link, what it leads to is replaced. A file that was there passes its permissions on.
    """
    target = Path(os.path.realpath(path))
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else permissions(0o666)
    handle, temporary = tempfile.mkstemp(prefix=".groupnorm-", suffix=target.suffix, dir=target.parent)
    os.close(handle)
    try:
        yield Path(temporary)
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):  # renamed, and then interrupted
            os.unlink(temporary)
        raise


def permissions(wanted: int) -> int:
    """What the umask leaves of `wanted`."""
    umask = os.umask(0)
    os.umask(umask)
    return wanted & ~umask


def write_all(files: Mapping[Path, Mapping[str, Array]]) -> None:
    """Writes every file under a temporary name, then renames them all."""
    with contextlib.ExitStack() as stack:
        for path, arrays in files.items():
            with stack.enter_context(whole(path)).open("wb") as file:
                write(file, path.suffix, arrays)


def write_text(path: Path, text: str) -> None:
    """A text file, under its name only when all of it is written."""
    with whole(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")

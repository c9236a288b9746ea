"""Arrays in files: .npy, .npz and raw .bin in, and out without ever leaving half a file behind.

bfloat16 is kept as uint16 in all of them; two raw bytes, which NumPy makes of an ml_dtypes array, are read too.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Mapping
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
    count, size = math.prod(shape), path.stat().st_size
    for dtype in dtypes:
        if size == count * dtype.itemsize:
            return np.fromfile(path, dtype).reshape(shape)
    wanted = " or ".join(f"{count * dtype.itemsize} ({dtype})" for dtype in dtypes)
    raise ValueError(f"{name}: {path} has {size} bytes; accepted: {wanted} for shape {shape}")


def as_dtype(name: str, array: Array, dtype: np.dtype[np.generic] | None) -> Array:
    """bfloat16 out of its stand-ins in files."""
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


def write_all(files: Mapping[Path, Mapping[str, Array]]) -> None:
    """Writes every file under a temporary name beside it, then renames them all."""
    umask = os.umask(0)
    os.umask(umask)
    finished: list[tuple[str, Path]] = []
    try:
        for path, arrays in files.items():
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".groupnorm-", delete=False) as file:
                finished.append((file.name, path))
                write(file, path.suffix, arrays)
            os.chmod(file.name, 0o666 & ~umask)
        while finished:
            os.replace(*finished[0])
            finished.pop(0)
    finally:
        for temporary, _ in finished:
            with contextlib.suppress(FileNotFoundError):  # renamed, and then interrupted
                os.unlink(temporary)


def write_text(path: Path, text: str) -> None:
    """A text file, under its name only when all of it is written."""
    umask = os.umask(0)
    os.umask(umask)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=".groupnorm-", delete=False, encoding="utf-8"
    ) as file:
        try:
            file.write(text)
            file.close()
            os.chmod(file.name, 0o666 & ~umask)
            os.replace(file.name, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file.name)
            raise

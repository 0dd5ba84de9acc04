"""Named arrays in NumPy's ``.npz`` files."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from demitasse.atomic import atomic_write
from demitasse.errors import WeightsError

__all__ = ["read_npz", "write_npz"]


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file by their names.

    Raises:
        WeightsError: The file is not there or cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        message = f"{path} cannot be read as weights: {error}"
        raise WeightsError(message) from error


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays, atomically.

    Raises:
        OSError: The file cannot be written; an old one is kept.
    """
    with atomic_write(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)

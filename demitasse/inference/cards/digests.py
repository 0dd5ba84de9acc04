"""Digests that tell whether a file of weights is a published one.

A file saved anew has other bytes; what its layers hold is the same.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from demitasse.core.paths import regular_file
from demitasse.errors import WeightsError
from demitasse.io.weights.read import read_weights

__all__ = ["contents_digest", "file_digests"]

PART = 1 << 20
"""Bytes that are read at once."""


def file_digests(path: Path) -> tuple[str, str]:
    """Return SHA-1 and SHA-256 of a file's bytes, as hexadecimal text.

    SHA-1 is what the pages of Caffe's Model Zoo give. It tells files apart; it is no proof against
    somebody who makes two files with one digest, and nothing here depends on that.

    Raises:
        WeightsError: The file cannot be read.
    """
    old, new = hashlib.sha1(usedforsecurity=False), hashlib.sha256()
    try:
        with regular_file(path).open("rb") as file:
            while part := file.read(PART):
                old.update(part)
                new.update(part)
    except OSError as error:
        raise WeightsError(error.strerror or str(error)).at(str(path)) from None
    return old.hexdigest(), new.hexdigest()


def contents_digest(path: Path) -> str:
    """Return SHA-256 of the parameters in a file, whatever its format.

    It is that of every layer that has any, in the order of their names: the name, and for each
    parameter its shape without axes of length 1 in front, which old files have, and its values as
    float32.

    Raises:
        WeightsError: The file cannot be read.
    """
    digest = hashlib.sha256()
    for layer, arrays in sorted(read_weights(path).items()):
        for index, array in sorted(arrays.items()):
            shape = list(array.shape)
            while shape and shape[0] == 1:
                del shape[0]
            digest.update(f"{layer}\0{index}\0{shape}\0".encode())
            digest.update(np.ascontiguousarray(array, "<f4").data)
    return digest.hexdigest()

"""Read nets from Caffe's files or from buffers.

Source: OpenCV 4, ``modules/dnn/src/caffe/caffe_importer.cpp``, ``modules/dnn/src/dnn_read.cpp``.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from demitasse.compat.cvdnn.errors import error, failing_as
from demitasse.compat.cvdnn.importer import Weights
from demitasse.compat.cvdnn.net import Net
from demitasse.core.paths import is_file
from demitasse.errors import ErrorCode, WeightsError
from demitasse.io.proto import NetParameter, parse_text
from demitasse.io.proto.read import text_of_file
from demitasse.io.proto.read_binary import parsed

__all__ = ["readNet", "readNetFromCaffe"]

Buffer = bytes | bytearray | memoryview | np.ndarray
Source = str | os.PathLike[str] | Buffer

WEIGHTS, TEXTS = (".caffemodel", ".h5"), (".prototxt",)


@failing_as("readNetFromCaffe")
def readNetFromCaffe(prototxt: Source, caffeModel: Source = "") -> Net:
    """Read a net and its weights.

    Args:
        prototxt: Path of the prototxt, or its contents: bytes, a bytearray or an array of uint8.
        caffeModel: Path of the weights, or their contents; empty for a net without parameters.

    Raises:
        error: A file cannot be read, or the weights do not fit the net.
    """
    if isinstance(prototxt, (str, os.PathLike)):
        source = os.fspath(prototxt)
        text = text_of_file(prototxt)
    else:
        source = "prototxt buffer"
        text = _contents(prototxt, "prototxt").decode("utf-8", "surrogateescape")
    message = parse_text(text, NetParameter, source)
    weights: Weights | None = None
    if isinstance(caffeModel, (str, os.PathLike)):
        weights = Path(caffeModel) if os.fspath(caffeModel) else None
        if weights is not None and not is_file(weights):
            missing = f"{weights}: No such file or directory"
            raise error(missing, code=ErrorCode.NOT_FOUND, file=str(weights))
    else:
        encoded = _contents(caffeModel, "caffeModel")
        if encoded:
            weights = parsed(encoded, NetParameter, "caffeModel buffer", WeightsError)
    return Net._of(message, weights, source)


@failing_as("readNet")
def readNet(model: Source, config: Source = "", framework: Source = "") -> Net:
    """Read a net from two files in either order: ``readNet(model, config="", framework="")``.

    Also ``readNet("caffe", bufferModel, bufferConfig)``, with the contents of the files.

    Args:
        model: Path of the weights or of the prototxt, recognized by the suffix.
        config: Path of the other file.
        framework: "caffe", or empty.

    Raises:
        error: The files are not Caffe's, or cannot be read.
    """
    if not isinstance(config, (str, os.PathLike)):
        if not isinstance(model, str) or model.lower() != "caffe":
            message = f"only nets of 'caffe' are read, not of {model!r}"
            raise error(message, code=ErrorCode.UNSUPPORTED, field="framework", got=model)
        return readNetFromCaffe(framework, config)
    if not isinstance(model, (str, os.PathLike)):
        message = "contents of files are read with readNet('caffe', bufferModel, bufferConfig)"
        raise error(message, code=ErrorCode.INVALID, field="model")
    first, second = os.fspath(model), os.fspath(config)
    if _ends(first, TEXTS) or _ends(second, WEIGHTS):
        first, second = second, first
    known = _ends(first, WEIGHTS) or _ends(second, TEXTS)
    if not known and str(framework).lower() != "caffe":
        message = (
            f"{first or second!r} does not have a suffix of Caffe's files; only .prototxt and "
            ".caffemodel are read"
        )
        raise error(message, code=ErrorCode.UNSUPPORTED, file=first or second)
    if not second:
        message = f"{first!r} needs the .prototxt that describes its net, as config"
        raise error(message, code=ErrorCode.MISSING, field="config")
    return readNetFromCaffe(second, first)


def _ends(path: str, endings: tuple[str, ...]) -> bool:
    return path.lower().endswith(endings)


def _contents(buffer: object, what: str) -> bytes:
    if isinstance(buffer, np.ndarray):
        if buffer.dtype != np.uint8:
            message = f"{what} as an array must be of uint8, it is {buffer.dtype}"
            raise error(message, code=ErrorCode.DTYPE_MISMATCH, field=what)
        return buffer.tobytes()
    if isinstance(buffer, (bytes, bytearray, memoryview)):
        return bytes(buffer)
    message = f"{what} must be a path or the contents of a file, it is {type(buffer).__name__}"
    raise error(message, code=ErrorCode.INVALID, field=what)

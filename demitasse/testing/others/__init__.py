"""What a net can be held against: files of other frameworks, other prototxts, recorded arrays."""

from __future__ import annotations

from pathlib import Path

from demitasse.errors import DataError, ErrorCode
from demitasse.testing.others.model import Other, Parameter, Value

__all__ = ["Other", "Parameter", "Value", "open_other"]


def open_other(path: Path, *, trust: bool = False) -> Other:
    """Open an ``.onnx`` file, a ``.pt2`` file of PyTorch's or a ``.npz`` file of recorded blobs.

    Args:
        path: The file; its ending says what it is.
        trust: Whether the file may run code, which reading a ``.pt2`` file amounts to.

    Raises:
        DataError: It cannot be read, or has another ending, or may run code and is not trusted.
        DemitasseError: The library that runs it is not installed.
    """
    match path.suffix.lower():
        case ".onnx":
            from demitasse.testing.others.onnx_model import OnnxModel

            return OnnxModel(path)
        case ".pt2":
            from demitasse.testing.others.exported_program import ExportedProgram

            return ExportedProgram(path, trust=trust)
        case ".npz":
            from demitasse.testing.others.recorded import Recorded

            return Recorded(path)
    message = (
        f"{path.suffix!r} is no ending of a model that a net can be held against: "
        ".onnx, .pt2, .npz, .prototxt, or a file of weights"
    )
    raise DataError(message, str(path), code=ErrorCode.UNKNOWN, got=path.suffix)

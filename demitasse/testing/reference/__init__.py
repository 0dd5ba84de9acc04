"""Reference models for comparisons: files of other frameworks, other nets, recorded arrays."""

from pathlib import Path

from demitasse.core.paths import check_exists
from demitasse.errors import DataError, ErrorCode
from demitasse.testing.reference.model import Parameter, ReferenceModel, Value

__all__ = ["Parameter", "ReferenceModel", "Value", "open_reference"]


def open_reference(path: str | Path, *, trust: bool = False) -> ReferenceModel:
    """Open an ``.onnx`` file, a ``.pt2`` file of PyTorch or a ``.npz`` file of recorded blobs.

    Args:
        path: The file; its suffix determines the format.
        trust: Allow the file to run code, as a ``.pt2`` file does when it is read.

    Raises:
        DataError: The file cannot be read, has another suffix, or runs code without ``trust``.
        DemitasseError: The library that runs the model is not installed.
    """
    path = Path(path)
    match path.suffix.lower():
        case ".onnx":
            from demitasse.testing.reference.onnx import OnnxModel

            return OnnxModel(path)
        case ".pt2":
            from demitasse.testing.reference.exported_program import ExportedProgram

            return ExportedProgram(path, trust=trust)
        case ".npz":
            from demitasse.testing.reference.model import RecordedArrays

            return RecordedArrays(path)
    check_exists(path)
    message = (
        f"got a file with suffix {path.suffix!r}, expected .onnx, .pt2, .npz, .prototxt, or a file "
        "of weights"
    )
    raise DataError(message, str(path), code=ErrorCode.UNKNOWN, got=path.suffix)

"""Files of ONNX, read with what they keep in files beside them.

Weights in files of their own are read from the model's folder alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from demitasse.core.paths import regular_file
from demitasse.errors import DataError, DemitasseError, ErrorCode

__all__ = ["onnx_library", "read_onnx"]


def onnx_library(name: str, what: str) -> Any:
    """Return the module ``onnx`` or ``onnxruntime``.

    Args:
        name: The module.
        what: What needs it, for the message.

    Raises:
        DemitasseError: It is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        message = f"{what} needs {name} ({error}); run: pip install 'demitasse[onnx]'"
        raise DemitasseError(message, code=ErrorCode.UNAVAILABLE, library=name) from None


def read_onnx(path: Path, onnx: Any) -> Any:
    """Return a model with all its weights.

    Args:
        path: The file.
        onnx: The module.

    Raises:
        DataError: It cannot be read, or names files outside its folder.
    """
    try:
        model = onnx.load(str(regular_file(path)), load_external_data=False)
        folder = path.resolve().parent
        for tensor in _tensors(model, onnx):
            for entry in tensor.external_data:
                if entry.key == "location":
                    _need_inside(path, folder, entry.value)
        onnx.external_data_helper.load_external_data_for_model(model, str(folder))
    except DataError:
        raise
    except Exception as error:  # protobuf's, onnx's and the system's
        message = f"it cannot be read as ONNX: {error}"
        raise DataError(message, str(path), code=ErrorCode.UNREADABLE) from error
    return model


def _tensors(message: Any, onnx: Any) -> Iterator[Any]:
    """Yield every tensor in a message, however deep."""
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            several = hasattr(value, "append") or hasattr(value, "add")
            for one in value if several else [value]:
                yield from _tensors(one, onnx)


def _need_inside(path: Path, folder: Path, location: str) -> None:
    """Refuse a file of weights that is not in the model's folder.

    Raises:
        DataError: It is outside, or leads outside by a link.
    """
    parts = (*PurePosixPath(location).parts, *PureWindowsPath(location).parts)
    absolute = PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor
    target = folder / location
    if absolute or ".." in parts or not target.resolve().is_relative_to(folder):
        message = f"it wants weights of {location!r}, which is outside its folder"
        raise DataError(message, str(path), code=ErrorCode.UNTRUSTED, got=location)
    regular_file(target)

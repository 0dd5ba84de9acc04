"""Models of ONNX in files, large ones with their constants beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from demitasse.atomic import atomic_write
from demitasse.export.onnx.library import library

__all__ = ["check_model", "write_model"]

MOST_BYTES = 2**31 - 2**24
"""From here on a file would be too large for protobuf, so that constants go to one beside it."""

SMALL = 1024
"""Constants of fewer bytes always stay in the model's own file."""


def check_model(model: Any) -> None:
    """Let ONNX's checker look at a model, and infer all shapes, strictly.

    Raises:
        onnx.checker.ValidationError: It is no valid model.
    """
    onnx = library("onnx")
    if _bytes(model) < MOST_BYTES:
        onnx.checker.check_model(model, full_check=True)


def write_model(model: Any, path: Path) -> list[Path]:
    """Write a model, each file atomically.

    Returns:
        The files: the model, and ``NAME.data`` with the constants where they are too large.

    Raises:
        OSError: A file cannot be written.
    """
    written = [path]
    if _bytes(model) >= MOST_BYTES:
        beside = path.with_name(f"{path.name}.data")
        _write_beside(model, beside)
        written.append(beside)
    with atomic_write(path) as file:
        file.write(model.SerializeToString())
    return written


def _write_beside(model: Any, path: Path) -> None:
    """Move the large constants of a model to a file of their own."""
    onnx = library("onnx")
    with atomic_write(path) as file:
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) < SMALL:
                continue
            file.write(b"\0" * (-file.tell() % 4096))  # where memory can be mapped
            place = {"location": path.name, "offset": file.tell(), "length": len(tensor.raw_data)}
            file.write(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))


def _bytes(model: Any) -> int:
    return sum(len(tensor.raw_data) for tensor in model.graph.initializer)

"""The optional libraries that write and run ONNX files."""

from __future__ import annotations

from typing import Any

from demitasse.testing.others.onnx_file import onnx_library

__all__ = ["library"]


def library(name: str) -> Any:
    """Return the module ``onnx`` or ``onnxruntime``.

    Raises:
        DemitasseError: It is not installed.
    """
    return onnx_library(name, "exporting to ONNX")

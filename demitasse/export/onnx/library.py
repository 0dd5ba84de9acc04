"""The optional libraries that write and run ONNX files."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from demitasse.errors import DemitasseError

__all__ = ["library"]


def library(name: str) -> Any:
    """Return the module ``onnx`` or ``onnxruntime``.

    Raises:
        DemitasseError: It is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        message = f"exporting to ONNX needs {name} ({error}); run: pip install demitasse[onnx]"
        raise DemitasseError(message) from None

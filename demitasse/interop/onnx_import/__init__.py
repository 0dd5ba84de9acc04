"""Models of other frameworks as nets of Caffe."""

from __future__ import annotations

from demitasse.interop.onnx_import.imports import Imported, import_onnx

__all__ = ["Imported", "import_onnx"]

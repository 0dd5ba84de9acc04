"""Nets in the formats of other frameworks."""

from __future__ import annotations

from demitasse.interop.export.onnx import Exported, Preprocess, export_onnx
from demitasse.interop.export.torch import TorchExported, export_torch

__all__ = ["Exported", "Preprocess", "TorchExported", "export_onnx", "export_torch"]

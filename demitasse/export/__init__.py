"""Nets in the formats of other frameworks."""

from __future__ import annotations

from demitasse.export.onnx import Exported, Preprocess, export_onnx
from demitasse.export.torch import TorchExported, export_torch

__all__ = ["Exported", "Preprocess", "TorchExported", "export_onnx", "export_torch"]

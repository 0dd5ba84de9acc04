"""Nets as files of ONNX."""

from __future__ import annotations

from demitasse.export.onnx.export import OPSET, OPSETS, Batch, Exported, export_onnx
from demitasse.export.onnx.preprocess import Preprocess

__all__ = ["OPSET", "OPSETS", "Batch", "Exported", "Preprocess", "export_onnx"]

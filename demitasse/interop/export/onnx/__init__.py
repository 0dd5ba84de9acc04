"""Nets as files of ONNX."""

from __future__ import annotations

from demitasse.interop.export.onnx.export import OPSET, OPSETS, Exported, export_onnx
from demitasse.interop.export.onnx.preprocess import Preprocess

__all__ = ["OPSET", "OPSETS", "Exported", "Preprocess", "export_onnx"]

"""Nets in the formats of other frameworks."""

from __future__ import annotations

from demitasse.export.onnx import Exported, Preprocess, export_onnx

__all__ = ["Exported", "Preprocess", "export_onnx"]

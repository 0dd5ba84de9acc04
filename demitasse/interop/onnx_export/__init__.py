"""Export of nets to ONNX files."""

from demitasse.interop.onnx_export.export import OPSET, OPSETS, Exported, export_onnx
from demitasse.interop.onnx_export.model import Preprocess

__all__ = ["OPSET", "OPSETS", "Exported", "Preprocess", "export_onnx"]

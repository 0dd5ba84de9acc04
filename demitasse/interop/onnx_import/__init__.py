"""Import of ONNX models as Caffe nets."""

from demitasse.interop.onnx_import.importer import Imported, import_onnx

__all__ = ["Imported", "import_onnx"]

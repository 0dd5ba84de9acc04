"""Models of other frameworks: export to ONNX and PyTorch, import from ONNX."""

from typing import TYPE_CHECKING

from demitasse.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from demitasse.interop.onnx_export import Exported, Preprocess, export_onnx
    from demitasse.interop.onnx_import import Imported, import_onnx
    from demitasse.interop.torch_export import TorchExported, export_torch

__all__ = [
    "Exported", "Imported", "Preprocess", "TorchExported", "export_onnx", "export_torch",
    "import_onnx",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        ".onnx_export": "Exported Preprocess export_onnx",
        ".onnx_import": "Imported import_onnx",
        ".torch_export": "TorchExported export_torch",
    },
)

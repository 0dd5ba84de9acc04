"""Models of other frameworks: export to ONNX and PyTorch, import from ONNX."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demitasse.interop.onnx_export import Exported, Preprocess, export_onnx
    from demitasse.interop.onnx_import import Imported, import_onnx
    from demitasse.interop.torch_export import TorchExported, export_torch

__all__ = [
    "Exported",
    "Imported",
    "Preprocess",
    "TorchExported",
    "export_onnx",
    "export_torch",
    "import_onnx",
]

_MODULE_OF = {
    "Exported": "onnx_export",
    "Imported": "onnx_import",
    "Preprocess": "onnx_export",
    "TorchExported": "torch_export",
    "export_onnx": "onnx_export",
    "export_torch": "torch_export",
    "import_onnx": "onnx_import",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _MODULE_OF:
        message = f"module 'demitasse.interop' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(f"demitasse.interop.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value

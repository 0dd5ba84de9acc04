"""Export of nets to PyTorch modules."""

from demitasse.interop.torch_export.export import TorchExported, export_torch

__all__ = ["TorchExported", "export_torch"]

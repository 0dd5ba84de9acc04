"""Nets as modules of PyTorch."""

from __future__ import annotations

from demitasse.interop.export.torch.export import TorchExported, export_torch

__all__ = ["TorchExported", "export_torch"]

"""What writes a layer down in PyTorch."""

from __future__ import annotations

from collections.abc import Callable

from demitasse.interop.export.torch.code import Code
from demitasse.interop.export.walk import Step

__all__ = ["Converter"]

Converter = Callable[[Step, Code], None]

"""What writes a layer down in operators of ONNX."""

from __future__ import annotations

from collections.abc import Callable

from demitasse.interop.export.onnx.graph import Graph
from demitasse.interop.export.walk import Step

__all__ = ["Converter"]

Converter = Callable[[Step, Graph], None]

"""What writes a layer down in operators of ONNX."""

from __future__ import annotations

from collections.abc import Callable

from demitasse.export.onnx.graph import Graph
from demitasse.export.walk import Step
from demitasse.proto import LayerParameter

__all__ = ["Converter", "Refusal"]

Converter = Callable[[Step, Graph], None]

Refusal = Callable[[LayerParameter], str]
"""Says why a layer has no form in ONNX, by its message; "" where it has one."""

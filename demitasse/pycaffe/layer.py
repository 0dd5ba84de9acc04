"""The base of layers written in Python, as ``caffe.Layer``."""

from __future__ import annotations

from demitasse.layers.python import PythonLayerBase as Layer

__all__ = ["Layer"]

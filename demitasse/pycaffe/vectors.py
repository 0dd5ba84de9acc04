"""Lists by the names that Caffe's compiled module gives them.

Source: Caffe, ``python/caffe/_caffe.cpp``.
"""

from __future__ import annotations

from typing import Any

__all__ = ["BoolVec", "DtypeVec", "IntVec", "LayerVec", "StringVec"]


class BoolVec(list[bool]):
    """Flags, such as which gradients a layer is to compute."""


class DtypeVec(list[float]):
    """Numbers, such as loss weights."""


class IntVec(list[int]):
    """Whole numbers, such as places of blobs in a net."""


class LayerVec(list[Any]):
    """Layers; a ``Python`` layer is the object that the user's class made."""


class StringVec(list[str]):
    """Names."""

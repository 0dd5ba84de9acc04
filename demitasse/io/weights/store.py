"""Interface of nets for loading and saving weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from demitasse.blob import Blob
from demitasse.graph import Param
from demitasse.io.proto import LayerParameter


class ParameterLayer(Protocol):
    """A layer (``demitasse.layers.base.Layer``)."""

    @property
    def name(self) -> str:
        """Name in the net."""

    @property
    def blobs(self) -> list[Blob]:
        """Parameters: weight, bias, ..."""


class ParameterStore(Protocol):
    """Layers and parameters of a net (``demitasse.net.structure.Structure``)."""

    @property
    def name(self) -> str:
        """Name of the net."""

    @property
    def layers(self) -> Sequence[ParameterLayer]:
        """All layers, in order."""

    @property
    def params(self) -> Mapping[str, Sequence[Blob]]:
        """Parameters of each layer with parameters, by layer name."""

    @property
    def params_list(self) -> Sequence[Blob]:
        """Parameters of all layers, in order; shared parameters once per layer."""

    @property
    def param_records(self) -> Sequence[Param]:
        """Layer, index and owner of each of ``params_list``."""

    @property
    def learnable_params(self) -> Sequence[Blob]:
        """Parameters with memory of their own."""

    @property
    def layer_numbers(self) -> Mapping[str, int]:
        """Index of the first layer of each name."""

    def layer_messages(self) -> list[LayerParameter]:
        """Return the messages of the layers, without parameters."""

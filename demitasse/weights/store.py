"""What weights are loaded into and saved from: a net, as far as its parameters go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from demitasse.blob import Blob
from demitasse.proto import LayerParameter

__all__ = ["ParameterLayer", "ParameterStore"]


class ParameterLayer(Protocol):
    """One layer (``demitasse.layers.base.Layer``)."""

    @property
    def name(self) -> str:
        """Its name in the net."""

    @property
    def blobs(self) -> list[Blob]:
        """Its parameters: weight, bias, ..."""


class ParameterStore(Protocol):
    """The layers of a net and their parameters (``demitasse.net.structure.NetStructure``)."""

    @property
    def name(self) -> str:
        """Name of the net."""

    @property
    def layers(self) -> Sequence[ParameterLayer]:
        """All layers, in order."""

    @property
    def params(self) -> Mapping[str, list[Blob]]:
        """The parameters of each layer that has any, by its name."""

    @property
    def params_list(self) -> Sequence[Blob]:
        """The parameters of all layers, in order; a shared one stands there for each sharer."""

    @property
    def param_layer_indices(self) -> Sequence[tuple[int, int]]:
        """For each of ``params_list``, the index of its layer and its index in that layer."""

    @property
    def param_owners(self) -> Sequence[int]:
        """For each of ``params_list``, whose memory it shares; -1 when it has its own."""

    @property
    def learnable_params(self) -> Sequence[Blob]:
        """The parameters that have memory of their own."""

    def has_layer(self, name: str) -> bool:
        """Whether there is a layer of this name."""

    def layer_by_name(self, name: str) -> ParameterLayer:
        """Return the first layer of this name."""

    def layer_messages(self) -> list[LayerParameter]:
        """Return the messages of the layers, without parameters."""

"""What weights are loaded into and saved from: a net, as far as its parameters go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from demitasse.blob import Blob
from demitasse.graph import Param
from demitasse.io.proto import LayerParameter

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
    """The layers of a net and their parameters (``demitasse.net.structure.Structure``)."""

    @property
    def name(self) -> str:
        """Name of the net."""

    @property
    def layers(self) -> Sequence[ParameterLayer]:
        """All layers, in order."""

    @property
    def params(self) -> Mapping[str, Sequence[Blob]]:
        """The parameters of each layer that has any, by its name."""

    @property
    def params_list(self) -> Sequence[Blob]:
        """The parameters of all layers, in order; a shared one stands there for each sharer."""

    @property
    def param_records(self) -> Sequence[Param]:
        """For each of ``params_list``, its place and its owner."""

    @property
    def learnable_params(self) -> Sequence[Blob]:
        """The parameters that have memory of their own."""

    @property
    def layer_numbers(self) -> Mapping[str, int]:
        """The index of the first layer of each name."""

    def layer_messages(self) -> list[LayerParameter]:
        """Return the messages of the layers, without parameters."""

"""What a net says of itself: everything here is read from its structure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from demitasse.blob import Blob
from demitasse.layers import Layer
from demitasse.net.structure import Structure
from demitasse.plan.liveness import bytes_taken
from demitasse.proto import NetParameter

__all__ = ["Described"]


class Described:
    """Names, layers, blobs and parameters of a net.

    Attributes:
        structure: Its parts by number, and how they hang together.
    """

    structure: Structure

    @property
    def name(self) -> str:
        """Name in the message."""
        return self.structure.name

    @property
    def phase(self) -> str:
        """Its phase: "TRAIN" or "TEST"."""
        return self.structure.phase

    @property
    def layers(self) -> Sequence[Layer]:
        """The layers, splits included, in order."""
        return self.structure.layers

    @property
    def layer_names(self) -> list[str]:
        """Names of the layers, in order."""
        return self.structure.layer_names

    @property
    def blobs(self) -> Mapping[str, Blob]:
        """The blobs by name, in order of appearance."""
        return self.structure.blobs

    @property
    def blob_names(self) -> list[str]:
        """Names of the blobs, in order of appearance."""
        return self.structure.blob_names

    @property
    def params(self) -> Mapping[str, Sequence[Blob]]:
        """The parameters of each layer that has any, by its name."""
        return self.structure.params

    @property
    def learnable_params(self) -> Sequence[Blob]:
        """The parameters that own their memory."""
        return self.structure.learnable_params

    @property
    def inputs(self) -> list[str]:
        """Names of the blobs the caller fills."""
        return self.structure.inputs

    @property
    def outputs(self) -> list[str]:
        """Names of the blobs nobody reads, in alphabetical order."""
        return self.structure.outputs

    def has_blob(self, name: str) -> bool:
        """Whether there is a blob of this name."""
        return self.structure.has_blob(name)

    def blob_by_name(self, name: str) -> Blob:
        """Return the blob of this name.

        Raises:
            NetError: There is none.
        """
        return self.structure.blob_by_name(name)

    def has_layer(self, name: str) -> bool:
        """Whether there is a layer of this name."""
        return self.structure.has_layer(name)

    def layer_by_name(self, name: str) -> Layer:
        """Return the first layer of this name.

        Raises:
            NetError: There is none.
        """
        return self.structure.layer_by_name(name)

    def layer_number(self, layer: int | str) -> int:
        """Return the index of a layer given by name or index.

        Raises:
            NetError: There is no such layer.
        """
        return self.structure.layer_number(layer)

    def to_proto(self, write_diff: bool = False) -> NetParameter:
        """Return the message of the net as built, with its parameters in it."""
        return self.structure.to_proto(write_diff)

    @property
    def blob_bytes(self) -> int:
        """Bytes that the data of the blobs takes at present, on host and device together."""
        return bytes_taken(blob.data_memory for blob in self.structure.blob_list)

    @property
    def gradient_bytes(self) -> int:
        """Bytes that the gradients of the blobs take at present, on host and device together."""
        return bytes_taken(blob.diff_memory for blob in self.structure.blob_list)

"""What a net says of itself, and finds by name: everything here is read from its structure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from demitasse.blob import Blob
from demitasse.errors import ErrorCode, NetError
from demitasse.io.proto import NetParameter
from demitasse.layers import Layer
from demitasse.net.structure import Structure
from demitasse.plan.liveness import bytes_taken

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
        return [layer.name for layer in self.layers]

    @property
    def blobs(self) -> Mapping[str, Blob]:
        """The blobs by name, in order of appearance."""
        return self.structure.blobs

    @property
    def blob_names(self) -> list[str]:
        """Names of the blobs, in order of appearance."""
        return list(self.structure.graph.blobs)

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
        return name in self.blobs

    def blob_by_name(self, name: str) -> Blob:
        """Return the blob of this name.

        Raises:
            NetError: There is none.
        """
        if not self.has_blob(name):
            message = f"no blob {name!r} in net {self.name!r}; it has {', '.join(self.blob_names)}"
            raise NetError(message, code=ErrorCode.UNKNOWN, blob=name)
        return self.blobs[name]

    def has_layer(self, name: str) -> bool:
        """Whether there is a layer of this name."""
        return name in self.structure.layer_numbers

    def layer_by_name(self, name: str) -> Layer:
        """Return the first layer of this name.

        Raises:
            NetError: There is none.
        """
        return self.layers[self.layer_number(name)]

    def layer_number(self, layer: int | str) -> int:
        """Return the index of a layer given by name or index.

        Raises:
            NetError: There is no such layer.
        """
        if isinstance(layer, str):
            if layer not in self.structure.layer_numbers:
                message = (
                    f"no layer {layer!r} in net {self.name!r}; it has {', '.join(self.layer_names)}"
                )
                raise NetError(message, code=ErrorCode.UNKNOWN, layer=layer)
            return self.structure.layer_numbers[layer]
        number = layer + len(self.layers) if layer < 0 else layer
        if not 0 <= number < len(self.layers):
            message = f"no layer {layer} in net {self.name!r} of {len(self.layers)} layers"
            raise NetError(message, code=ErrorCode.OUT_OF_RANGE, layer=layer)
        return number

    def to_proto(self, write_diff: bool = False) -> NetParameter:
        """Return the message of the net as built, with its parameters in it."""
        proto = NetParameter(name=self.name, layer=self.structure.layer_messages())
        for layer, message in zip(self.layers, proto.layer, strict=True):
            message.blobs.extend(blob.to_proto(write_diff) for blob in layer.blobs)
        return proto

    @property
    def blob_bytes(self) -> int:
        """Bytes that the data of the blobs takes at present, on host and device together."""
        return bytes_taken(blob.data_memory for blob in self.structure.blob_list)

    @property
    def gradient_bytes(self) -> int:
        """Bytes that the gradients of the blobs take at present, on host and device together."""
        return bytes_taken(blob.diff_memory for blob in self.structure.blob_list)

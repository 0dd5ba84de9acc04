"""What a net is: its layers, blobs and parameters by name and number, before any pass.

Source: Caffe, ``include/caffe/net.hpp``.
"""

from __future__ import annotations

from demitasse.blob import Blob
from demitasse.errors import NetError
from demitasse.graph import ParamTable
from demitasse.layers import Layer
from demitasse.net.assembly import Assembly
from demitasse.proto import LayerParameter, NetParameter, Phase

__all__ = ["NetStructure"]


class NetStructure:
    """The parts of a net and how they hang together.

    Attributes:
        name: Name in the message.
        phase: "TRAIN" or "TEST".
        layers: The layers, splits included, in order.
        blob_list: The blobs, in order of appearance.
        params_list: All parameter blobs, in order of layers, shared ones again for each sharer.
        learnable_params: The parameter blobs that own their memory.
    """

    def __init__(self, parts: Assembly) -> None:
        self._parts = parts
        self.name = parts.param.name
        self.phase = Phase.Name(parts.param.state.phase)
        self.layers: list[Layer] = parts.layers
        self.blob_list: list[Blob] = parts.blobs
        self.params_list: list[Blob] = parts.params
        self.learnable_params = [parts.params[i] for i in parts.table.learnable]
        self._layer_numbers = {layer.name: i for i, layer in reversed([*enumerate(self.layers)])}

    @property
    def layer_names(self) -> list[str]:
        """Names of the layers, in order."""
        return [layer.name for layer in self.layers]

    @property
    def blob_names(self) -> list[str]:
        """Names of the blobs, in order of appearance."""
        return list(self._parts.graph.blobs)

    @property
    def blobs(self) -> dict[str, Blob]:
        """The blobs by name, in order of appearance."""
        return dict(zip(self._parts.graph.blobs, self.blob_list, strict=True))

    @property
    def params(self) -> dict[str, list[Blob]]:
        """The parameters of each layer that has any."""
        return {layer.name: layer.blobs for layer in self.layers if layer.blobs}

    @property
    def inputs(self) -> list[str]:
        """Names of the blobs the caller fills."""
        return [self._parts.graph.blobs[i] for i in self._parts.graph.inputs]

    @property
    def outputs(self) -> list[str]:
        """Names of the blobs nobody reads, in alphabetical order."""
        return [self._parts.graph.blobs[i] for i in self._parts.graph.outputs]

    def bottom_ids(self, layer: int) -> list[int]:
        """Return the numbers of the blobs a layer reads."""
        return list(self._parts.graph.nodes[layer].bottoms)

    def top_ids(self, layer: int) -> list[int]:
        """Return the numbers of the blobs a layer writes."""
        return list(self._parts.graph.nodes[layer].tops)

    @property
    def blob_loss_weights(self) -> list[float]:
        """The loss weight of each blob."""
        weights = [0.0] * len(self.blob_list)
        for layer, node in zip(self.layers, self._parts.graph.nodes, strict=True):
            for i, top in enumerate(node.tops):
                weights[top] = layer.loss(i) or weights[top]
        return weights

    @property
    def layer_need_backward(self) -> list[bool]:
        """For each layer, whether its backward runs."""
        return list(self._parts.needs.layers)

    @property
    def bottom_need_backward(self) -> list[list[bool]]:
        """For each layer and bottom, whether that gradient is computed."""
        return [list(flags) for flags in self._parts.needs.bottoms]

    @property
    def memory_used(self) -> int:
        """Bytes of all tops, those in place counted again, as Caffe's figure does."""
        return self._parts.memory_used

    @property
    def param_table(self) -> ParamTable:
        """Owners, names and learning factors of the parameters (``graph.ParamTable``)."""
        return self._parts.table

    @property
    def params_lr(self) -> list[float]:
        """Learning rate factor of each learnable parameter."""
        return list(self._parts.table.lr_mult)

    @property
    def params_weight_decay(self) -> list[float]:
        """Weight decay factor of each learnable parameter."""
        return list(self._parts.table.decay_mult)

    @property
    def param_owners(self) -> list[int]:
        """For each parameter, whose memory it shares; -1 when it is its own."""
        return list(self._parts.table.owners)

    @property
    def param_display_names(self) -> list[str]:
        """Name of each parameter, or its index in its layer."""
        return list(self._parts.table.display_names)

    @property
    def param_layer_indices(self) -> list[tuple[int, int]]:
        """(layer, index in it) of each parameter."""
        return list(self._parts.table.layer_indices)

    @property
    def learnable_param_ids(self) -> list[int]:
        """For each parameter, which learnable parameter it is."""
        return list(self._parts.table.learnable_ids)

    def has_blob(self, name: str) -> bool:
        """Whether there is a blob of this name."""
        return name in self._parts.graph.blobs

    def blob_by_name(self, name: str) -> Blob:
        """Return the blob of this name.

        Raises:
            NetError: There is none.
        """
        if not self.has_blob(name):
            message = f"no blob {name!r} in net {self.name!r}; it has {', '.join(self.blob_names)}"
            raise NetError(message)
        return self.blobs[name]

    def has_layer(self, name: str) -> bool:
        """Whether there is a layer of this name."""
        return name in self._layer_numbers

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
            if layer not in self._layer_numbers:
                message = (
                    f"no layer {layer!r} in net {self.name!r}; it has {', '.join(self.layer_names)}"
                )
                raise NetError(message)
            return self._layer_numbers[layer]
        number = layer + len(self.layers) if layer < 0 else layer
        if not 0 <= number < len(self.layers):
            message = f"no layer {layer} in net {self.name!r} of {len(self.layers)} layers"
            raise NetError(message)
        return number

    def to_proto(self, write_diff: bool = False) -> NetParameter:
        """Return the message of the net as built, with its parameters in it."""
        proto = NetParameter(name=self.name, layer=self.layer_messages())
        for layer, message in zip(self.layers, proto.layer, strict=True):
            message.blobs.extend(blob.to_proto(write_diff) for blob in layer.blobs)
        return proto

    def layer_messages(self) -> list[LayerParameter]:
        """Return the messages of the layers as built, without parameters."""
        messages = []
        for layer, node in zip(self.layers, self._parts.graph.nodes, strict=True):
            message = LayerParameter()
            message.CopyFrom(layer.param)
            message.ClearField("blobs")
            message.bottom[:] = node.param.bottom
            message.top[:] = node.param.top
            messages.append(message)
        return messages

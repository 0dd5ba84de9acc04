"""What a net is: its layers, blobs and parameters by name and number, before any pass.

Source: Caffe, ``include/caffe/net.hpp``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from demitasse.blob import Blob
from demitasse.graph import Graph, Needs, Param
from demitasse.io.proto import LayerParameter, NetParameter, Phase
from demitasse.layers import Layer
from demitasse.net.named import Named
from demitasse.plan import Place

__all__ = ["Structure"]


@dataclass(frozen=True, eq=False)
class Structure:
    """The parts of a net and how they hang together; made by ``assemble``.

    Attributes:
        message: The message as built: filtered, with splits.
        graph: Who reads and writes which blob.
        layers: The layers, splits included, in order.
        blob_list: The blobs, in order of appearance.
        needs: Who takes part in the backward pass.
        param_records: Owner, name and learning factors of each parameter, in order of layers.
        params_list: The parameter blobs in that order, shared ones again for each sharer.
        memory_used: Bytes of all tops, those in place counted again, as Caffe's figure does.
    """

    message: NetParameter
    graph: Graph
    layers: tuple[Layer, ...]
    blob_list: tuple[Blob, ...]
    needs: Needs
    param_records: tuple[Param, ...]
    params_list: tuple[Blob, ...]
    memory_used: int

    @property
    def name(self) -> str:
        """Name in the message."""
        return self.message.name

    @cached_property
    def phase(self) -> str:
        """Its phase: "TRAIN" or "TEST"."""
        return Phase.Name(self.message.state.phase)

    @cached_property
    def blobs(self) -> Mapping[str, Blob]:
        """The blobs by name, in order of appearance."""
        return Named(
            zip(self.graph.blobs, self.blob_list, strict=True),
            "net.blobs",
            "write its values with net.blobs[{0!r}].data[...] = array, or hold another blob's "
            "memory with share_data",
        )

    @cached_property
    def params(self) -> Mapping[str, Sequence[Blob]]:
        """The parameters of each layer that has any, by its name."""
        return Named(
            ((layer.name, tuple(layer.blobs)) for layer in self.layers if layer.blobs),
            "net.params",
            "write its values with net.params[{0!r}][0].data[...] = array, or hold another "
            "parameter's memory with share_data",
        )

    @cached_property
    def learnable_params(self) -> list[Blob]:
        """The parameter blobs that own their memory."""
        pairs = zip(self.params_list, self.param_records, strict=True)
        return [blob for blob, record in pairs if record.owner is None]

    @property
    def learnable_records(self) -> list[Param]:
        """The records of the learnable parameters, in their order."""
        return [record for record in self.param_records if record.owner is None]

    @cached_property
    def layer_numbers(self) -> Mapping[str, int]:
        """The index of the first layer of each name."""
        return {layer.name: i for i, layer in reversed([*enumerate(self.layers)])}

    def places(self) -> list[Place]:
        """Return each layer with its blobs and the gradients wanted of it."""
        return [
            Place(
                layer,
                tuple(self.blob_list[b] for b in node.bottoms),
                tuple(self.blob_list[t] for t in node.tops),
                tuple(self.needs.bottoms[i]),
                self.needs.layers[i],
            )
            for i, (layer, node) in enumerate(zip(self.layers, self.graph.nodes, strict=True))
        ]

    def share_weights(self) -> None:
        """Let parameters of one name hold one memory."""
        for blob, record in zip(self.params_list, self.param_records, strict=True):
            if record.owner is not None:
                blob.share_data(self.params_list[record.owner.number])
                blob.share_diff(self.params_list[record.owner.number])

    @property
    def inputs(self) -> list[str]:
        """Names of the blobs the caller fills."""
        return [self.graph.blobs[i] for i in self.graph.inputs]

    @property
    def outputs(self) -> list[str]:
        """Names of the blobs nobody reads, in alphabetical order."""
        return [self.graph.blobs[i] for i in self.graph.outputs]

    def bottom_ids(self, layer: int) -> list[int]:
        """Return the numbers of the blobs a layer reads."""
        return list(self.graph.nodes[layer].bottoms)

    def top_ids(self, layer: int) -> list[int]:
        """Return the numbers of the blobs a layer writes."""
        return list(self.graph.nodes[layer].tops)

    @property
    def blob_loss_weights(self) -> list[float]:
        """The loss weight of each blob."""
        weights = [0.0] * len(self.blob_list)
        for layer, node in zip(self.layers, self.graph.nodes, strict=True):
            for i, top in enumerate(node.tops):
                weights[top] = layer.loss(i) or weights[top]
        return weights

    @property
    def layer_need_backward(self) -> list[bool]:
        """For each layer, whether its backward runs."""
        return list(self.needs.layers)

    @property
    def bottom_need_backward(self) -> list[list[bool]]:
        """For each layer and bottom, whether that gradient is computed."""
        return [list(flags) for flags in self.needs.bottoms]

    def layer_messages(self) -> list[LayerParameter]:
        """Return the messages of the layers as built, without parameters."""
        messages = []
        for layer, node in zip(self.layers, self.graph.nodes, strict=True):
            message = LayerParameter()
            message.CopyFrom(layer.param)
            message.ClearField("blobs")
            message.bottom[:] = node.param.bottom
            message.top[:] = node.param.top
            messages.append(message)
        return messages

"""Structure: the layers, blobs and parameters of a net, by name and by number.

Source: Caffe, ``include/caffe/net.hpp``.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, TypeVar

from demitasse.blob import Blob
from demitasse.core.text import html_of, nearest
from demitasse.graph import Graph, Needs, Param
from demitasse.io.proto import LayerParameter, NetParameter, Phase
from demitasse.layers import Layer
from demitasse.plan import LayerBinding

V = TypeVar("V")

MOST_NAMES = 20  # limit of names that an error lists


class ReadOnlyMapping(Mapping[str, V]):
    """Blobs or parameters of a net by name, in order; an assignment raises TypeError.

    An assignment would have no effect on the net. Of a name that occurs twice, the last value
    counts. ``what`` names the mapping in messages; ``instead`` is the advice, {0} the name.
    """

    def __init__(self, items: Iterable[tuple[str, V]], what: str, instead: str) -> None:
        self._items, self._what, self._instead = dict(items), what, instead

    def __getitem__(self, name: str) -> V:
        """Return the value of a name; the KeyError of an unknown one has similar names."""
        try:
            return self._items[name]
        except KeyError:
            raise KeyError(_unknown(self._what, name, self._items)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __setitem__(self, name: str, value: object) -> NoReturn:
        del value
        message = f"{self._what}[{name!r}] cannot be replaced; {self._instead.format(name)}"
        raise TypeError(message)

    def __delitem__(self, name: str) -> NoReturn:
        message = f"{self._what}[{name!r}] cannot be removed from its net"
        raise TypeError(message)

    def __repr__(self) -> str:
        return f"{self._what} {self._items!r}"

    _repr_html_ = html_of


def _unknown(what: str, name: object, known: Collection[str]) -> str:
    """Return the message for a name that is not among the known names; with similar names."""
    near = nearest(name, known, 3) if isinstance(name, str) else []
    advice = f"did you mean {' or '.join(map(repr, near))}?" if near else ""
    some = ", ".join([*known][:MOST_NAMES])
    more = ", ..." if len(known) > MOST_NAMES else ""
    return f"{what} has no {name!r}; {advice or f'it has {some}{more}'}"


class LayerSequence(tuple[Layer, ...]):
    """The layers of a net, by index or name."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        """Return a layer by index or name, or a part of the layers."""
        if isinstance(index, str):
            for layer in self:
                if layer.name == index:
                    return layer
            message = _unknown("net.layers", index, [layer.name for layer in self])
            raise KeyError(message)
        return super().__getitem__(index)


@dataclass(frozen=True, eq=False)
class Structure:
    """The parts of a net and their connections; made by ``assemble``."""

    message: NetParameter  # as built: filtered, with Split layers
    graph: Graph  # the blobs that each layer reads and writes
    layers: tuple[Layer, ...]  # Split layers included, in order
    blob_list: tuple[Blob, ...]  # in order of appearance
    needs: Needs  # the layers and blobs that take part in the backward pass
    param_records: tuple[Param, ...]  # owner, name and learning factors, in order of layers
    params_list: tuple[Blob, ...]  # in the same order, a shared one once per sharer
    memory_used: int  # bytes of all tops; in-place tops count again, as in Caffe's figure

    @property
    def name(self) -> str:
        """Name in the message."""
        return self.message.name

    @cached_property
    def phase(self) -> str:
        """Phase: "TRAIN" or "TEST"."""
        return Phase.Name(self.message.state.phase)

    @cached_property
    def blobs(self) -> Mapping[str, Blob]:
        """The blobs by name, in order of appearance."""
        return ReadOnlyMapping(
            zip(self.graph.blobs, self.blob_list, strict=True),
            "net.blobs",
            "write its values with net.blobs[{0!r}].data[...] = array, or share the memory of "
            "another blob with share_data",
        )

    @cached_property
    def params(self) -> Mapping[str, Sequence[Blob]]:
        """The parameters of each layer that has parameters, by its name."""
        return ReadOnlyMapping(
            ((layer.name, tuple(layer.blobs)) for layer in self.layers if layer.blobs),
            "net.params",
            "write its values with net.params[{0!r}][0].data[...] = array, or share the memory "
            "of another parameter with share_data",
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

    def bindings(self) -> list[LayerBinding]:
        """Return each layer with its blobs and its wanted gradients."""
        return [
            LayerBinding(
                layer,
                tuple(self.blob_list[b] for b in node.bottoms),
                tuple(self.blob_list[t] for t in node.tops),
                tuple(self.needs.bottoms[i]),
                self.needs.layers[i],
            )
            for i, (layer, node) in enumerate(zip(self.layers, self.graph.nodes, strict=True))
        ]

    def share_weights(self) -> None:
        """Make parameters with the same name share one memory."""
        for blob, record in zip(self.params_list, self.param_records, strict=True):
            if record.owner is not None:
                blob.share_data(self.params_list[record.owner.number])
                blob.share_diff(self.params_list[record.owner.number])

    @property
    def inputs(self) -> list[str]:
        """Names of the input blobs, which the caller fills."""
        return [self.graph.blobs[i] for i in self.graph.inputs]

    @property
    def outputs(self) -> list[str]:
        """Names of the blobs that no layer reads, in alphabetical order."""
        return [self.graph.blobs[i] for i in self.graph.outputs]

    def bottom_ids(self, layer: int) -> list[int]:
        """Return the indices of the blobs that a layer reads."""
        return list(self.graph.nodes[layer].bottoms)

    def top_ids(self, layer: int) -> list[int]:
        """Return the indices of the blobs that a layer writes."""
        return list(self.graph.nodes[layer].tops)

    @property
    def blob_loss_weights(self) -> list[float]:
        """The loss weight of each blob."""
        weights = [0.0] * len(self.blob_list)
        for layer, node in zip(self.layers, self.graph.nodes, strict=True):
            for i, top in enumerate(node.tops):
                weights[top] = layer.loss(i) or weights[top]
        return weights

    def layer_messages(self) -> list[LayerParameter]:
        """Return the messages of the layers as built, without parameters."""
        messages = []
        for layer, node in zip(self.layers, self.graph.nodes, strict=True):
            message = deepcopy(layer.param)
            message.ClearField("blobs")
            message.bottom[:] = node.param.bottom
            message.top[:] = node.param.top
            messages.append(message)
        return messages

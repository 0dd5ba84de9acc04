"""The walk of a net: its layers in order, and a name for every value that they pass on.

A blob that layers write in place holds several values, one after the other. Formats of other
frameworks give every value a name of its own. The last value has the blob's name; one before it is
``blob@layer``, of the layer that wrote it. Only where the blob is an input of the net, the input
has the name, and the last value is ``blob@layer``, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TypeVar

from demitasse.interop.export.sizes import Size, Sizes
from demitasse.layers import Layer
from demitasse.layers.dropout import Dropout
from demitasse.layers.scale_bias import Scale
from demitasse.net import Net
from demitasse.plan import Place

__all__ = ["Step", "Value", "Walk", "passes_on", "walk"]

L = TypeVar("L", bound=Layer)


@dataclass(frozen=True)
class Value:
    """What a blob holds between two layers that write it.

    Attributes:
        name: Its name, which no other value has.
        blob: Name of the blob.
        shape: Its shape in the net as it is declared.
        sizes: The same, with free sizes.
    """

    name: str
    blob: str
    shape: tuple[int, ...]
    sizes: tuple[Size, ...]


@dataclass(frozen=True)
class Step:
    """A layer, and what it reads and writes.

    Attributes:
        place: The layer with its blobs.
        bottoms: What it reads.
        tops: What it writes.
        scale: The Scale that follows a BatchNorm and is one with it; its top is in ``tops``.
        number: Number of the layer in the net, of the Scale where there is one.
    """

    place: Place
    bottoms: tuple[Value, ...]
    tops: tuple[Value, ...]
    number: int
    scale: Layer | None = None

    @property
    def layer(self) -> Layer:
        """The layer."""
        return self.place.layer

    def of(self, kind: type[L]) -> L:
        """Return the layer as one of a class.

        Raises:
            TypeError: It is none.
        """
        if not isinstance(self.layer, kind):
            message = f"layer {self.layer.name!r} is no {kind.__name__}"
            raise TypeError(message)
        return self.layer


@dataclass(frozen=True)
class Walk:
    """A net, ready to be written down.

    Attributes:
        inputs: What the caller gives.
        steps: The layers that compute something, in order.
        outputs: Name -> value; that of a blob, and the value it ends with.
        values: Number of a layer and of its top -> what is there afterwards, of layers that only
            pass on what they read, too.
    """

    inputs: tuple[Value, ...]
    steps: tuple[Step, ...]
    outputs: dict[str, Value]
    values: dict[tuple[int, int], Value]


def walk(net: Net, sizes: Sizes, outputs: Collection[str] = ()) -> Walk:
    """Walk a net of phase TEST.

    Args:
        net: The net.
        sizes: The sizes of each blob.
        outputs: Names of blobs that are outputs besides those of the net.
    """
    graph, names, places = net.structure.graph, _Names(net), net.structure.places()
    values: dict[tuple[int, int], Value] = {}
    current: dict[int, Value] = {}  # blob -> what it holds
    inputs: list[Value] = []
    steps: list[Step] = []
    for index, (layer, node) in enumerate(zip(net.layers, graph.nodes, strict=True)):
        bottoms = tuple(current[blob] for blob in node.bottoms)
        for number, blob in enumerate(node.tops):
            if passes_on(layer):
                current[blob] = bottoms[0]
            else:
                blob_name, shape = graph.blobs[blob], net.structure.blob_list[blob].shape
                current[blob] = Value(names.next(blob, layer), blob_name, shape, sizes[blob])
            values[index, number] = current[blob]
        tops = tuple(current[blob] for blob in node.tops)
        if layer.type == "Input":
            inputs += tops
        elif not passes_on(layer):
            steps.append(Step(places[index], bottoms, tops, index))
    wanted = [*net.outputs, *(name for name in outputs if name not in net.outputs)]
    ends = {name: current[net.blob_names.index(name)] for name in wanted}
    ends = {
        name: value for name, value in ends.items() if name not in net.inputs or value not in inputs
    }
    ends = {value.name if name in net.inputs else name: value for name, value in ends.items()}
    steps, folded = _folded(steps, ends)
    values = {key: value for key, value in values.items() if value.name not in folded}
    return Walk(tuple(inputs), tuple(steps), ends, values)


def passes_on(layer: Layer) -> bool:
    """Whether a layer's tops hold what its bottom does, or it has none."""
    if isinstance(layer, Dropout):
        return not layer.drops and layer.factor == 1
    return layer.type in {"Silence", "Split"}


class _Names:
    """Gives the values of a net their names."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.taken = set(net.blob_names)
        self.left = Counter(
            blob
            for layer, node in zip(net.layers, net.structure.graph.nodes, strict=True)
            for blob in ([] if passes_on(layer) else node.tops)
        )
        self.given: set[str] = set()

    def next(self, blob: int, layer: Layer) -> str:
        """Return the name of what a layer writes to a blob."""
        self.left[blob] -= 1
        name = self.net.blob_names[blob]
        is_input = blob in self.net.structure.graph.inputs
        last = layer.type == "Input" if is_input else not self.left[blob]
        if not last:
            name = f"{name}@{layer.name}"
            while name in self.taken:
                name += "'"
            self.taken.add(name)
        return name


def _folded(steps: list[Step], outputs: dict[str, Value]) -> tuple[list[Step], set[str]]:
    """Make a BatchNorm and the Scale that alone reads its top one step.

    Returns:
        The steps, and the names of the values that are gone.
    """
    readers = Counter(value.name for step in steps for value in step.bottoms)
    kept = {value.name for value in outputs.values()}
    norms = {
        step.tops[0].name: step
        for step in steps
        if step.layer.type == "BatchNorm" and len(step.bottoms[0].shape) > 1
    }
    found: list[Step] = []
    gone: set[str] = set()
    for step in steps:
        first = step.bottoms[0] if step.bottoms else None
        norm = norms.get(first.name) if first else None
        scale = step.layer
        if (
            first is not None
            and norm is not None
            and isinstance(scale, Scale)
            and readers[first.name] == 1
            and first.name not in kept
            and scale.blobs[:1]
            and scale.blobs[0].shape == first.shape[1:2]
            and len(step.bottoms) == 1
            and scale.view[0] == first.shape[0]
        ):
            found.remove(norm)
            gone.add(first.name)
            found.append(replace(step, place=norm.place, bottoms=norm.bottoms, scale=scale))
        else:
            found.append(step)
    return found, gone

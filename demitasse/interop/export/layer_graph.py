"""Exported nets in static single assignment form: each value has one name and one writer.

A blob that layers write in place becomes several values. The last value has the blob's name, an
earlier one is ``blob@layer`` with the layer that wrote it. For a blob that is an input of the net,
the input has the blob's name, and the last value is ``blob@layer``, too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from demitasse.core.device import Device
from demitasse.errors import ConfigError, DemitasseError, ErrorCode, NetError
from demitasse.interop.export.reduction import Reason, reduce_net
from demitasse.interop.export.sizes import Size, Sizes, SymbolicSize, declared_sizes, symbolic_sizes
from demitasse.io.proto import NetParameter
from demitasse.layers import Layer
from demitasse.layers.dropout import Dropout
from demitasse.layers.scale_bias import Scale
from demitasse.net import Net
from demitasse.plan import LayerBinding

L = TypeVar("L", bound=Layer)
Model = TypeVar("Model")

Batch = int | Literal["dynamic", "fixed"] | None
"""Batch of an exported model: a number, symbolic, the net's, or symbolic where possible."""


@dataclass(frozen=True)
class Value:
    """Contents of a blob between two layers that write to it.

    Attributes:
        name: Unique name of the value.
        blob: Name of the blob.
        shape: Declared shape.
        sizes: Shape with symbolic sizes.
    """

    name: str
    blob: str
    shape: tuple[int, ...]
    sizes: tuple[Size, ...]

    @property
    def texts(self) -> list[int | str]:
        """Sizes, symbolic ones as formulas."""
        return [size if isinstance(size, int) else str(size) for size in self.sizes]

    @property
    def is_symbolic(self) -> bool:
        """True if a size is symbolic."""
        return any(isinstance(size, SymbolicSize) for size in self.sizes)


@dataclass(frozen=True)
class LayerNode:
    """A layer with the values it reads and writes.

    Attributes:
        place: The layer with its blobs.
        scale: Scale layer folded into this BatchNorm; ``tops`` are those of the Scale.
    """

    place: LayerBinding
    bottoms: tuple[Value, ...]
    tops: tuple[Value, ...]
    scale: Layer | None = None

    @property
    def layer(self) -> Layer:
        """The layer."""
        return self.place.layer

    @property
    def label(self) -> str:
        """Name and type of the layer, for messages."""
        return self.place.label

    def layer_as(self, kind: type[L]) -> L:
        """Return the layer, narrowed to a class."""
        if not isinstance(self.layer, kind):
            message = f"{self.label} is not a {kind.__name__}"
            raise TypeError(message)
        return self.layer


@dataclass(frozen=True)
class LayerGraph:
    """Layers and values of an exported net.

    Attributes:
        inputs: Values that the caller provides.
        nodes: Layers that compute, in order; identities are removed.
        outputs: Output name -> value.
        values: (Layer index, top index) -> value of that top, identities included.
    """

    inputs: tuple[Value, ...]
    nodes: tuple[LayerNode, ...]
    outputs: dict[str, Value]
    values: dict[tuple[int, int], Value]


def build_layer_graph(net: Net, sizes: Sizes, outputs: Collection[str] = ()) -> LayerGraph:
    """Return the layer graph of a net of phase TEST, with ``outputs`` as further output blobs."""
    structure, next_name, places = net.structure, _value_names(net), net.structure.bindings()
    values: dict[tuple[int, int], Value] = {}
    current: dict[int, Value] = {}  # blob -> its present value
    inputs: list[Value] = []
    nodes: list[LayerNode] = []
    for index, (layer, ids) in enumerate(zip(net.layers, structure.graph.nodes, strict=True)):
        bottoms = tuple(current[blob] for blob in ids.bottoms)
        for number, blob in enumerate(ids.tops):
            if is_identity(layer):
                current[blob] = bottoms[0]
            else:
                blob_name, shape = structure.graph.blobs[blob], structure.blob_list[blob].shape
                current[blob] = Value(next_name(blob, layer), blob_name, shape, sizes[blob])
            values[index, number] = current[blob]
        tops = tuple(current[blob] for blob in ids.tops)
        if layer.type == "Input":
            inputs += tops
        elif not is_identity(layer):
            nodes.append(LayerNode(places[index], bottoms, tops))
    wanted = [*net.outputs, *(name for name in outputs if name not in net.outputs)]
    ends = {name: current[net.blob_names.index(name)] for name in wanted}
    ends = {
        value.name if name in net.inputs else name: value
        for name, value in ends.items()
        if name not in net.inputs or value not in inputs
    }
    nodes, folded = _fold_scales(nodes, ends)
    values = {key: value for key, value in values.items() if value.name not in folded}
    return LayerGraph(tuple(inputs), tuple(nodes), ends, values)


def is_identity(layer: Layer) -> bool:
    """Return True if the tops of a layer equal its bottom, or there are none."""
    if isinstance(layer, Dropout):
        return not layer.drops and layer.factor == 1
    return layer.type in {"Silence", "Split"}


def _value_names(net: Net) -> Callable[[int, Layer], str]:
    """Return a function that gives the next value of a blob, and its writer, a unique name."""
    taken, graph = set(net.blob_names), net.structure.graph
    writes_left = Counter(
        blob
        for layer, ids in zip(net.layers, graph.nodes, strict=True)
        for blob in ([] if is_identity(layer) else ids.tops)
    )

    def next_name(blob: int, layer: Layer) -> str:
        writes_left[blob] -= 1
        name = net.blob_names[blob]
        if not (layer.type == "Input" if blob in graph.inputs else not writes_left[blob]):
            name = f"{name}@{layer.name}"
            while name in taken:
                name += "'"
            taken.add(name)
        return name

    return next_name


def _fold_scales(
    nodes: list[LayerNode], outputs: dict[str, Value]
) -> tuple[list[LayerNode], set[str]]:
    """Fold each Scale that is the only reader of a BatchNorm's top into the BatchNorm.

    Returns the nodes, and the names of the values that were removed.
    """
    readers = Counter(value.name for node in nodes for value in node.bottoms)
    kept = {value.name for value in outputs.values()}
    norms = {
        node.tops[0].name: node
        for node in nodes
        if node.layer.type == "BatchNorm" and len(node.bottoms[0].shape) > 1
    }
    found: list[LayerNode] = []
    removed: set[str] = set()
    for node in nodes:
        first = node.bottoms[0] if node.bottoms else None
        norm = norms.get(first.name) if first else None
        scale = node.layer
        if (
            first is not None
            and norm is not None
            and isinstance(scale, Scale)
            and readers[first.name] == 1
            and first.name not in kept
            and scale.blobs[:1]
            and scale.blobs[0].shape == first.shape[1:2]
            and len(node.bottoms) == 1
            and scale.view[0] == first.shape[0]
        ):
            found.remove(norm)
            removed.add(first.name)
            found.append(replace(norm, tops=node.tops, scale=scale))
        else:
            found.append(node)
    return found, removed


# -- building and converting ---------------------------------------------------------------------


def build_net(
    net: str | os.PathLike[str] | NetParameter | Net,
    files: Sequence[Any],
    reason: Reason,
    *,
    batch: Batch = None,
    device: str | Device | None = None,
    **reduction: Any,
) -> tuple[Net, list[str]]:
    """Reduce a net to the exported layers, load its weights and set its batch.

    Returns:
        The net, and notes about removed layers and assumptions.
    """
    if isinstance(net, Net) and files:
        message = "got a net and files of weights; load the files into the net, and pass None"
        raise ConfigError(message, code=ErrorCode.CONFLICT, field="weights")
    reduced = reduce_net(net, reason, weights=files, **reduction)
    given = net if isinstance(net, Net) else None
    made = Net(
        reduced.message,
        device=given.device if given is not None and device is None else device,
        dtype="float32" if given is None else given.dtype,
        base_dir=reduced.base_dir,
    )
    _load_weights(made, given, files, reduced.notes)
    _set_batch(made, batch)
    return made, reduced.notes


def convert(
    net: Net, outputs: Sequence[str], sizes: Sizes, write: Callable[[LayerGraph], Model]
) -> tuple[Model, LayerGraph]:
    """Build the layer graph of a net and convert it."""
    layers = build_layer_graph(net, sizes, outputs)
    if not layers.outputs:
        message = "nothing to export: all layers are data layers, losses or metrics"
        raise NetError(message, code=ErrorCode.MISSING, field="outputs")
    return write(layers), layers


def convert_with_symbolic_batch(
    net: Net,
    outputs: Sequence[str],
    batch: Batch,
    notes: list[str],
    write: Callable[[LayerGraph], Model],
) -> tuple[Model, LayerGraph]:
    """Convert a net, with a symbolic batch where requested or possible.

    Each size that stays fixed gets a note.
    """
    if batch not in {None, "dynamic"}:
        return convert(net, outputs, declared_sizes(net), write)
    try:
        symbolic = convert(net, outputs, symbolic_sizes(net), write)
    except DemitasseError as error:
        if batch == "dynamic":
            raise
        fixed = convert(net, outputs, declared_sizes(net), write)
        notes.append(f"the batch is fixed: {error}")
        return fixed
    notes += [
        f"input {value.name!r} keeps its first axis of {value.sizes[0]}"
        for value in symbolic[1].inputs
        if value.sizes and isinstance(value.sizes[0], int)
    ]
    return symbolic


def _load_weights(made: Net, given: Net | None, files: Sequence[Any], notes: list[str]) -> None:
    """Load parameters, and note the layers without stored ones."""
    missing = set(made.params)
    if given is not None:
        made.share_trained_layers_with(given)
        missing -= set(given.params)
    for one in files:
        missing &= set(made.load(one).missing)
    notes += [
        f"no file has weights for layer {name!r}; its parameters are those of its fillers"
        for name in made.params
        if name in missing
    ]


def _set_batch(net: Net, batch: Batch) -> None:
    """Reshape all inputs whose first size equals that of the first input."""
    if batch in {None, "dynamic", "fixed"}:
        return
    if not isinstance(batch, int) or batch < 1:
        message = f"got batch {batch!r}, expected a number above 0, 'dynamic' or 'fixed'"
        raise ConfigError(message, code=ErrorCode.INVALID, field="batch", got=batch)
    names = [name for name in net.inputs if net.blobs[name].num_axes]
    own = {name: net.blobs[name].shape for name in names}
    for name in names:
        if own[name][0] == own[names[0]][0]:
            net.blobs[name].reshape((batch, *own[name][1:]))
    net.reshape()

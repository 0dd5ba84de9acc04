"""Exported nets in static single assignment form: each value has one name and one writer.

A blob that layers write in place becomes several values. The last value has the blob's name, an
earlier one is ``blob@layer`` with the layer that wrote it. For a blob that is an input of the net,
the input has the blob's name, and the last value is ``blob@layer``, too.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np

from demitasse.backends.windows import Shape, Window
from demitasse.core.device import Device
from demitasse.errors import ConfigError, DemitasseError, ErrorCode, NetError
from demitasse.interop.export.reduction import Reason, reduce_net
from demitasse.interop.export.sizes import Size, Sizes, SymbolicSize, declared_sizes, symbolic_sizes
from demitasse.io.proto import NetParameter
from demitasse.io.weights.batch_norm import running_averages
from demitasse.layers import Layer
from demitasse.layers.batch_norm import BatchNorm
from demitasse.layers.crop import Crop
from demitasse.layers.dropout import Dropout
from demitasse.layers.exp_log_power import Power
from demitasse.layers.scale_bias import Scale
from demitasse.net import Net
from demitasse.plan import LayerBinding

L = TypeVar("L", bound=Layer)
Model = TypeVar("Model")
S = TypeVar("S", bound=Size)

Batch = int | Literal["dynamic", "fixed"] | None
"""Batch of an exported model: a number, symbolic, the net's, or symbolic where possible."""


@dataclass(frozen=True)
class Value:
    """Contents of a blob between two layers that write to it; ``shape`` is the declared one."""

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

    ``scale`` is the Scale layer folded into a BatchNorm, and ``tops`` are those of the Scale.
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
    wanted = [*net.outputs, *(name for name in outputs if name not in net.outputs)]
    last_read = {blob: index for index, ids in enumerate(structure.graph.nodes)
                 for blob in ids.bottoms if net.layers[index].type != "Silence"}  # fmt: skip
    last_read |= {net.blob_names.index(name): len(places) for name in wanted}
    for index, (layer, ids) in enumerate(zip(net.layers, structure.graph.nodes, strict=True)):
        bottoms = tuple(current[blob] for blob in ids.bottoms)
        for blob in () if is_identity(layer) else set(ids.tops) & set(ids.bottoms):
            memory = structure.blob_list[blob].data_memory
            for other in (one for one in current if one != blob and last_read.get(one, 0) > index):
                if structure.blob_list[other].data_memory is memory:
                    _refuse_overwriting(places[index], net.blob_names[blob], current[other].blob)
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
    ends = {name: current[net.blob_names.index(name)] for name in wanted}
    ends = {
        value.name if name in net.inputs else name: value
        for name, value in ends.items()
        if name not in net.inputs or value not in inputs
    }
    nodes, folded = _fold_scales(nodes, ends)
    values = {key: value for key, value in values.items() if value.name not in folded}
    return LayerGraph(tuple(inputs), tuple(nodes), ends, values)


def _refuse_overwriting(place: LayerBinding, blob: str, other: str) -> NoReturn:
    message = (
        f"{place.label} overwrites {blob!r} in place, and with it {other!r}, which shares its "
        "memory and is read afterwards; give the layer a top of its own"
    )
    raise NetError(message, code=ErrorCode.UNSUPPORTED, layer=place.layer.name, blob=other)


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
        scale = node.layer
        norm = norms.get(node.bottoms[0].name) if len(node.bottoms) == 1 else None
        if (
            isinstance(scale, Scale)
            and norm is not None
            and readers[norm.tops[0].name] == 1
            and norm.tops[0].name not in kept
            and scale.blobs[0].shape == norm.tops[0].shape[1:2]
            and scale.view[0] == norm.tops[0].shape[0]
        ):
            found.remove(norm)
            removed.add(norm.tops[0].name)
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

    Returns the net, and notes about removed layers and assumptions.
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
    missing = set(made.params)  # layers without stored parameters
    if given is not None:
        made.share_trained_layers_with(given)
        missing -= set(given.params)
    for one in files:
        missing &= set(made.load(one).missing)
    reduced.notes += [
        f"no file has weights for layer {name!r}; its parameters are those of its fillers"
        for name in made.params
        if name in missing
    ]
    _set_batch(made, batch)
    return made, reduced.notes


def convert(
    net: Net,
    outputs: Sequence[str],
    batch: Batch,
    notes: list[str],
    write: Callable[[LayerGraph], Model],
    *,
    any_size: bool = False,
) -> tuple[Model, LayerGraph]:
    """Convert a net, with a symbolic batch where requested or possible.

    Each size that stays fixed gets a note. With ``any_size``, see ``symbolic_sizes``.
    """

    def converted(sizes: Sizes) -> tuple[Model, LayerGraph]:
        layers = build_layer_graph(net, sizes, outputs)
        if not layers.outputs:
            message = "nothing to export: all layers are data layers, losses or metrics"
            raise NetError(message, code=ErrorCode.MISSING, field="outputs")
        return write(layers), layers

    if batch not in {None, "dynamic"}:
        return converted(declared_sizes(net))
    try:
        symbolic = converted(symbolic_sizes(net, any_size=any_size))
    except DemitasseError as error:
        if batch == "dynamic" or any_size:
            raise
        fixed = converted(declared_sizes(net))
        notes.append(f"the batch is fixed: {error}")
        return fixed
    notes += [
        f"input {value.name!r} keeps its first axis of {value.sizes[0]}"
        for value in symbolic[1].inputs
        if value.sizes and isinstance(value.sizes[0], int)
    ]
    return symbolic


def _set_batch(net: Net, batch: Batch) -> None:
    """Reshape all inputs whose first size equals that of the first input."""
    if batch in {None, "dynamic", "fixed"}:
        return
    if isinstance(batch, str) or not hasattr(batch, "__index__") or batch < 1:
        message = f"got batch {batch!r}, expected a number above 0, 'dynamic' or 'fixed'"
        raise ConfigError(message, code=ErrorCode.INVALID, field="batch", got=batch)
    names = [name for name in net.inputs if net.blobs[name].num_axes]
    own = {name: net.blobs[name].shape for name in names}
    for name in names:
        if own[name][0] == own[names[0]][0]:
            net.blobs[name].reshape((batch, *own[name][1:]))
    net.reshape()


# -- facts of layers that all formats need -------------------------------------------------------


@dataclass(frozen=True)
class BatchNormParameters:
    """Parameters of a BatchNorm with its folded Scale. Shapes: (C,).

    Attributes:
        affine: True if the layers have scale or shift of their own.
        scale: Factor after the division, 1 by default.
        shift: Summand after the factor, 0 by default.
    """

    mean: np.ndarray
    variance: np.ndarray
    affine: bool
    scale: np.ndarray
    shift: np.ndarray


def batch_norm_parameters(node: LayerNode) -> BatchNormParameters:
    """Return the parameters of a BatchNorm and of its folded Scale."""
    layer = node.layer_as(BatchNorm)
    blobs, count = [blob.cpu_data() for blob in layer.blobs], layer.channels
    scale, shift = np.ones(count, np.float32), np.zeros(count, np.float32)
    if layer.affine:
        scale, shift = blobs[3], blobs[4]
    if node.scale is not None:
        more = [blob.cpu_data().reshape(count) for blob in node.scale.blobs]
        scale, shift = scale * more[0], shift * more[0]
        if len(more) > 1:
            shift = shift + more[1]
    affine = bool(layer.affine) or node.scale is not None
    return BatchNormParameters(*running_averages(blobs[:3]), affine, scale, shift)


def pads_to_fit(window: Window, size: Shape, out: Shape) -> list[int]:
    """Return the pads after an image with which the last window ends on the padded image.

    Caffe accepts a window that exceeds image and pads by less than a stride.
    """
    padded = zip(window.canvas(size, out), size, window.pad, strict=True)
    return [whole - length - before for whole, length, before in padded]


def broadcast_sizes(x: Value, operand: Sequence[S], axis: int) -> tuple[S | int, ...]:
    """Return the sizes with which an operand for the axes of ``x`` from ``axis`` broadcasts."""
    behind = len(x.shape) - axis % len(x.shape) - len(operand) if operand else 0
    return (*operand, *(1,) * behind)


def channel_shape(count: int, x: Value) -> tuple[int, ...]:
    """Return the shape in which one value per channel broadcasts."""
    return (count, *(1,) * (len(x.shape) - 2))


def constant_power(layer: Power) -> float:
    """Return the value of a Power whose factor is 0."""
    return math.pow(layer.shift, layer.power) if layer.shift or layer.power >= 0 else math.inf


def crop_offsets(node: LayerNode) -> tuple[int, list[int]]:
    """Return the first axis that a Crop crops, and the offset along each axis from there."""
    layer = node.layer_as(Crop)
    axis = layer.param.crop_param.axis % len(node.bottoms[0].shape)
    return axis, [kept.start for kept in layer.index[axis:]]


def reorg_blocks(node: LayerNode) -> tuple[list[Size], list[int]]:
    """Return the sizes of a Reorg's blocks of pixels or channels, and their new order."""
    p, [x] = node.layer.param.reorg_param, node.bottoms
    s, n, (c, h, w) = p.stride, x.sizes[0], x.shape[1:]
    less = c // (s * s)
    if p.reverse:
        return [n, s, s, less, h, w], [0, 3, 4, 1, 5, 2]
    return [n, less, h, s, w, s], [0, 3, 5, 1, 2, 4]


def tile_repeats(node: LayerNode) -> list[int]:
    """Return the number of repetitions of a Tile along each axis."""
    p, axes = node.layer.param.tile_param, len(node.bottoms[0].shape)
    repeats = [1] * axes
    repeats[p.axis % axes] = p.tiles
    return repeats


def prior_boxes(node: LayerNode) -> np.ndarray:
    """Return the boxes of a PriorBox, which depend on shapes alone."""
    place = node.place
    place.layer.run_forward(place.bottom, place.top)
    return np.array(place.top[0].cpu_data())

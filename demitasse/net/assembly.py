"""Turn a net message into layers and blobs, in Caffe's order.

Filter, insert splits, create, wire, set up, share parameters, find who needs backward.

Source: Caffe, ``Net::Init`` in ``src/caffe/net.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from demitasse.blob import Blob
from demitasse.core.log import get_logger
from demitasse.core.out_of_memory import with_location
from demitasse.errors import DemitasseError
from demitasse.graph import (
    Graph,
    LayerSetup,
    Needs,
    Param,
    append_params,
    filter_net,
    insert_splits,
    move_strides,
    moved_weight,
    moved_weights,
    raise_faults,
    who_needs_backward,
    wire,
)
from demitasse.io.proto import LayerParameter, NetParameter, Phase
from demitasse.layers import Layer, LayerContext, create_layer
from demitasse.net.structure import Structure

__all__ = ["assemble", "called"]

log = get_logger(__name__)


def called(layer: Layer | LayerParameter) -> str:
    """Return a layer as messages name it."""
    return f"layer {layer.name!r} ({layer.type})"


def assemble(
    message: NetParameter,
    context: LayerContext,
    origins: Sequence[str] = (),
    kept: Collection[str] | None = None,
) -> Structure:
    """Build a net's layers and blobs.

    Args:
        message: The whole net, with its state filled in.
        context: What the layers are told.
        origins: ``file:line`` of each layer of ``message``, where known.
        kept: Names of all blobs that somebody looks at, besides the outputs, where others need not
            be computed as the message says; None where they must be.

    Raises:
        NetError: Layers do not fit together; everything that can be said before set-up is said
            at once.
        DemitasseError: A layer refuses its fields or its bottoms; says which.
    """
    filtered, taken = filter_net(message)
    places = [origins[i] for i in taken] if origins else []
    if kept is not None:
        filtered, whence = move_strides(filtered, kept, places)
        places = [places[i] if i >= 0 else "" for i in whence] if places else []
    split, source = insert_splits(filtered, places)
    for producer, which in moved_weights(filtered):
        weighted = filtered.layer[producer]
        log.warning("%s: %s", called(weighted), moved_weight(weighted.top[which]))
    for param in split.layer:
        if not param.HasField("phase"):
            param.phase = message.state.phase

    def origin_of(index: int) -> str:
        return places[source[index]] if places and source[index] >= 0 else ""

    layers = _create(split, context, origin_of)
    needed = [layer.tops.low if layer.auto_tops else 0 for layer in layers]
    graph = wire(split, needed, origin_of)
    blobs = [Blob((), context.dtype, context.device, name) for name in graph.blobs]
    records: list[Param] = []
    params: list[Blob] = []
    memory_used = 0
    for index, (layer, node) in enumerate(zip(layers, graph.nodes, strict=True)):
        bottom = [blobs[b] for b in node.bottoms]
        top = [blobs[t] for t in node.tops]
        try:
            layer.initialize(bottom, top)
            _mark_frozen(layer, node.param)
            append_params(records, index, layer.param, [b.shape for b in layer.blobs])
        except (DemitasseError, MemoryError, OSError) as error:
            fault = with_location(error, called(layer))
            if isinstance(fault, DemitasseError):
                fault.from_line(origin_of(index))
            raise fault from fault.__cause__
        params += layer.blobs
        memory_used += sum(blob.count for blob in top) * _itemsize(context.dtype)
    setups = _setups(layers, graph)
    needs = who_needs_backward(graph, setups, message.force_backward)
    _tell_ended(graph, setups, needs)
    for layer, wanted in zip(layers, needs.params, strict=True):
        for index, want in enumerate(wanted):
            layer.set_param_propagate_down(index, want)
    structure = Structure(
        message=split,
        graph=graph,
        layers=tuple(layers),
        blob_list=tuple(blobs),
        needs=needs,
        param_records=tuple(records),
        params_list=tuple(params),
        memory_used=memory_used,
    )
    structure.share_weights()
    return structure


def _create(
    net: NetParameter, context: LayerContext, origin_of: Callable[[int], str]
) -> list[Layer]:
    """Create all layers; those whose type is unknown are named together."""
    layers: list[Layer] = []
    faults: list[DemitasseError] = []
    for index, param in enumerate(net.layer):
        own = LayerParameter()
        own.CopyFrom(param)
        try:
            layers.append(create_layer(own, Phase.Name(param.phase), context))
        except DemitasseError as error:
            faults.append(error.at(called(param), layer=param.name).from_line(origin_of(index)))
    raise_faults(faults)
    return layers


def _mark_frozen(layer: Layer, param: LayerParameter) -> None:
    """Tell a layer which parameters have a learning rate of 0, by the message as it was given."""
    for index in range(len(layer.blobs)):
        spec = param.param[index] if index < len(param.param) else None
        layer.set_param_propagate_down(index, spec is None or spec.lr_mult != 0)


def _setups(layers: Sequence[Layer], graph: Graph) -> list[LayerSetup]:
    return [
        LayerSetup(
            params=tuple(layer.param_propagate_down(i) for i in range(len(layer.blobs))),
            losses=tuple(bool(layer.loss(i)) for i in range(len(node.tops))),
            allow_force=tuple(layer.allow_force_backward(i) for i in range(len(node.bottoms))),
            without_gradient=frozenset(
                i for i in range(len(node.bottoms)) if not layer.has_gradient(i)
            ),
        )
        for layer, node in zip(layers, graph.nodes, strict=True)
    ]


def _tell_ended(graph: Graph, setups: Sequence[LayerSetup], needs: Needs) -> None:
    """Log where a gradient ends that trained layers could have used: at labels and indices."""
    for node, setup, wanted in zip(graph.nodes, setups, needs.layers, strict=True):
        for index in sorted(setup.without_gradient):
            if wanted and needs.blobs[node.bottoms[index]]:
                blob = graph.blobs[node.bottoms[index]]
                log.info("%s has no gradient for its bottom %r", called(node.param), blob)


def _itemsize(dtype: str) -> int:
    return {"float32": 4, "float64": 8}[dtype]

"""Converters of layers that reshape, move or select values."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from demitasse.interop.export.layer_graph import LayerNode
from demitasse.interop.onnx_export.graph import Converter, GraphBuilder
from demitasse.layers.argmax import ArgMax
from demitasse.layers.concat import Concat
from demitasse.layers.permute import Permute
from demitasse.layers.slice import Slice

END = 2**31 - 1
"""End of a slice up to the end of an axis."""


def _reshape(node: LayerNode, graph: GraphBuilder) -> None:
    """Add Flatten, Identity or Reshape."""
    [x], [y] = node.bottoms, node.tops
    if len(y.shape) == 2 and len(x.shape) > 2 and x.sizes[0] == y.sizes[0]:
        graph.add("Flatten", x, to=y, axis=1)
    elif x.sizes == y.sizes:
        graph.add("Identity", x, to=y)
    else:
        graph.reshape(x, y.sizes, to=y)


def _concat(node: LayerNode, graph: GraphBuilder) -> None:
    graph.add("Concat", *node.bottoms, to=node.tops[0], axis=node.layer_as(Concat).axis)


def _slice(node: LayerNode, graph: GraphBuilder) -> None:
    """Add Split, or a Slice for each top if the size is symbolic."""
    layer, [x], tops = node.layer_as(Slice), node.bottoms, node.tops
    parts = [last - first for first, last in pairwise(layer.ends)]
    if len(tops) == 1:
        graph.add("Identity", x, to=tops[0])
    elif isinstance(x.sizes[layer.axis], int):
        graph.add_several("Split", x, graph.ints(parts), to=tops, axis=layer.axis)
    elif not layer.param.slice_param.slice_point:
        count = len(tops) if graph.opset >= 18 else None
        graph.add_several("Split", x, to=tops, axis=layer.axis, num_outputs=count)
    else:
        ends = [*layer.ends[1:-1], END]
        for first, last, top in zip(layer.ends, ends, tops, strict=False):
            graph.slice(x, layer.axis, first, last, to=top)


def _crop(node: LayerNode, graph: GraphBuilder) -> None:
    p, [x, like], [y] = node.layer.param.crop_param, node.bottoms, node.tops
    axis = p.axis % len(x.shape)
    axes = list(range(axis, len(x.shape)))
    offsets = list(p.offset) if len(p.offset) > 1 else list(p.offset or [0]) * len(axes)
    sizes = y.sizes[axis:]
    if all(isinstance(size, int) for size in sizes):
        ends = graph.ints([a + b for a, b in zip(offsets, y.shape[axis:], strict=True)])
    else:
        ends = graph.add("Add", graph.sizes(like.sizes[axis : len(x.shape)]), graph.ints(offsets))
    graph.add("Slice", x, graph.ints(offsets), ends, graph.ints(axes), to=y)


def _permute(node: LayerNode, graph: GraphBuilder) -> None:
    graph.add(
        "Transpose", node.bottoms[0], to=node.tops[0], perm=list(node.layer_as(Permute).order)
    )


def _shuffle_channel(node: LayerNode, graph: GraphBuilder) -> None:
    """Add Transpose of the groups and their channels."""
    [x], [y], group = node.bottoms, node.tops, node.layer.param.shuffle_channel_param.group
    count, rest = x.shape[1], x.sizes[2:]
    table = graph.reshape(x, [x.sizes[0], group, count // group, *rest])
    behind = range(3, 3 + len(rest))
    turned = graph.add("Transpose", table, perm=[0, 2, 1, *behind])
    graph.reshape(turned, y.sizes, to=y)


def _reorg(node: LayerNode, graph: GraphBuilder) -> None:
    p, [x], [y] = node.layer.param.reorg_param, node.bottoms, node.tops
    s, (n, (c, h, w)) = p.stride, (x.sizes[0], x.shape[1:])
    less = c // (s * s)
    if p.reverse:
        blocks, order = graph.reshape(x, [n, s, s, less, h, w]), [0, 3, 4, 1, 5, 2]
    else:
        blocks, order = graph.reshape(x, [n, less, h, s, w, s]), [0, 3, 5, 1, 2, 4]
    graph.reshape(graph.add("Transpose", blocks, perm=order), y.sizes, to=y)


def _tile(node: LayerNode, graph: GraphBuilder) -> None:
    p, [x] = node.layer.param.tile_param, node.bottoms
    repeats = [1] * len(x.shape)
    repeats[p.axis % len(x.shape)] = p.tiles
    graph.add("Tile", x, graph.ints(repeats), to=node.tops[0])


def _argmax(node: LayerNode, graph: GraphBuilder) -> None:
    """Add ArgMax or TopK; among equal values, Caffe selects the last."""
    layer, [x], [y] = node.layer_as(ArgMax), node.bottoms, node.tops
    axis = 1 if layer.axis is None else layer.axis
    flat = layer.axis is None and len(x.shape) != 2
    rows = graph.add("Flatten", x, axis=1) if flat else x.name
    values, indices = _largest(node, graph, rows, axis)
    if layer.axis is not None:
        if layer.values:
            graph.add("Identity", values, to=y)
        else:
            graph.to_float(indices, to=y)
        return
    best = graph.to_float(indices)
    if layer.values:
        middle = graph.ints([1])
        pair = [graph.add("Unsqueeze", one, middle) for one in (best, values)]
        best = graph.add("Concat", *pair, axis=1)
    graph.reshape(best, y.sizes, to=y)


def _largest(node: LayerNode, graph: GraphBuilder, x: str, axis: int) -> tuple[str, str]:
    """Add the largest values along an axis and their indices."""
    layer, shape = node.layer_as(ArgMax), node.bottoms[0].shape
    if layer.k == 1:
        index = graph.add("ArgMax", x, axis=axis, keepdims=1, select_last_index=1)
        return (graph.reduce("ReduceMax", x, [axis]) if layer.values else ""), index
    backwards = graph.slice(x, axis, -1, -END, step=-1)
    values, index = graph.name("values"), graph.name("indices")
    graph.add_several("TopK", backwards, graph.ints([layer.k]), to=[values, index], axis=axis)
    count = shape[axis]
    if layer.axis is None:
        count = 1
        for size in shape[1:]:
            count *= size
    return values, graph.add("Sub", graph.ints([count - 1]), index)


def _batch_reindex(node: LayerNode, graph: GraphBuilder) -> None:
    x, indices = node.bottoms
    graph.add("Gather", x, graph.to_int(indices), to=node.tops[0], axis=0)


def _filter(node: LayerNode, graph: GraphBuilder) -> None:
    """Add Gather of the items with a selector other than 0."""
    *sources, selector = node.bottoms
    found = graph.add("NonZero", graph.reshape(selector, [-1]))
    chosen = graph.reshape(found, [-1])
    for source, top in zip(sources, node.tops, strict=True):
        graph.add("Gather", source, chosen, to=top, axis=0)


def _parameter(node: LayerNode, graph: GraphBuilder) -> None:
    """Add the parameter as a value."""
    graph.add("Identity", graph.param(node.layer.blobs[0], "value"), to=node.tops[0])


CONVERTERS: Mapping[str, Converter] = {
    "ArgMax": _argmax,
    "BatchReindex": _batch_reindex,
    "Concat": _concat,
    "Crop": _crop,
    "Filter": _filter,
    "Flatten": _reshape,
    "Parameter": _parameter,
    "Permute": _permute,
    "Reorg": _reorg,
    "Reshape": _reshape,
    "ShuffleChannel": _shuffle_channel,
    "Slice": _slice,
    "Squeeze": _reshape,
    "Tile": _tile,
}

"""Converters of layers that reshape, move or select values."""

from collections.abc import Mapping
from itertools import pairwise

from demitasse.interop.export.layer_graph import (
    LayerNode,
    Value,
    crop_offsets,
    reorg_blocks,
    tile_repeats,
)
from demitasse.interop.onnx_export.graph import END, Array, Converter, GraphBuilder, Result
from demitasse.layers.argmax import ArgMax
from demitasse.layers.concat import Concat
from demitasse.layers.permute import Permute
from demitasse.layers.slice import Slice


def _reshape(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add Flatten, Reshape or nothing."""
    [x], [y] = node.bottoms, node.tops
    if len(y.shape) == 2 and len(x.shape) > 2 and x.sizes[0] == y.sizes[0]:
        return graph.add("Flatten", x, axis=1)
    return x if x.sizes == y.sizes else graph.reshape(x, y.sizes)


def _slice(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add Split, or a Slice for each top if the size is symbolic."""
    layer, [x], tops = node.layer_as(Slice), node.bottoms, node.tops
    if len(tops) == 1:
        return x
    names = [top.blob for top in tops]
    if isinstance(x.sizes[layer.axis], int):
        parts = [last - first for first, last in pairwise(layer.ends)]
        return graph.add_several("Split", x, parts, names=names, axis=layer.axis)
    if not layer.param.slice_param.slice_point:
        count = len(tops) if graph.opset >= 18 else None
        return graph.add_several("Split", x, names=names, axis=layer.axis, num_outputs=count)
    ends = pairwise([*layer.ends[:-1], END])
    return [graph.slice(x, layer.axis, first, last) for first, last in ends]


def _crop(node: LayerNode, graph: GraphBuilder) -> Result:
    [x, like], [y], (axis, offsets) = node.bottoms, node.tops, crop_offsets(node)
    if all(isinstance(size, int) for size in y.sizes[axis:]):
        ends = graph.ints([a + b for a, b in zip(offsets, y.shape[axis:], strict=True)])
    else:
        ends = graph.add("Add", graph.sizes(like.sizes[axis : len(x.shape)]), offsets)
    return graph.add("Slice", x, offsets, ends, range(axis, len(x.shape)))


def _shuffle_channel(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add Transpose of the groups and their channels."""
    [x], [y], group = node.bottoms, node.tops, node.layer.param.shuffle_channel_param.group
    count, rest = x.shape[1], x.sizes[2:]
    table = graph.reshape(x, [x.sizes[0], group, count // group, *rest])
    order = [0, 2, 1, *range(3, 3 + len(rest))]
    return graph.reshape(graph.add("Transpose", table, perm=order), y.sizes)


def _reorg(node: LayerNode, graph: GraphBuilder) -> Result:
    [x], [y], (sizes, order) = node.bottoms, node.tops, reorg_blocks(node)
    blocks = graph.reshape(x, sizes)
    return graph.reshape(graph.add("Transpose", blocks, perm=order), y.sizes)


def _argmax(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add ArgMax or TopK; among equal values, Caffe selects the last."""
    layer, [x], [y] = node.layer_as(ArgMax), node.bottoms, node.tops
    axis = 1 if layer.axis is None else layer.axis
    rows: Array | Value = x
    if layer.axis is None and len(x.shape) != 2:
        rows = graph.add("Flatten", x, axis=1)
    if layer.k == 1:
        indices = graph.add("ArgMax", rows, axis=axis, keepdims=1, select_last_index=1)
        values = graph.reduce("ReduceMax", rows, [axis]) if layer.values else indices
    else:
        backwards = graph.slice(rows, axis, -1, -END, step=-1)
        values, indices = graph.add_several(
            "TopK", backwards, [layer.k], names=["values", "indices"], axis=axis
        )
        count = graph.add("Gather", graph.add("Shape", rows), [axis])
        indices = graph.add("Sub", graph.add("Sub", count, [1]), indices)
    if layer.axis is None and layer.values:
        pair = [graph.add("Unsqueeze", one, [1]) for one in (graph.to_float(indices), values)]
        return graph.reshape(graph.add("Concat", *pair, axis=1), y.sizes)
    if layer.values:
        return graph.add("Identity", values)
    return graph.to_float(indices if layer.axis is not None else graph.reshape(indices, y.sizes))


def _filter(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add Gather of the items with a selector other than 0."""
    *sources, selector = node.bottoms
    found = graph.add("NonZero", graph.reshape(selector, [-1]))
    chosen = graph.reshape(found, [-1])
    return [graph.add("Gather", source, chosen, axis=0) for source in sources]


CONVERTERS: Mapping[str, Converter] = {
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze"), _reshape),
    "ArgMax": _argmax,
    "BatchReindex": lambda node, graph: graph.add(
        "Gather", node.bottoms[0], graph.to_int(node.bottoms[1]), axis=0
    ),
    "Concat": lambda node, graph: graph.add(
        "Concat", *node.bottoms, axis=node.layer_as(Concat).axis
    ),
    "Crop": _crop,
    "Filter": _filter,
    "Parameter": lambda node, graph: graph.param(node.layer.blobs[0], "value"),
    "Permute": lambda node, graph: graph.add(
        "Transpose", node.bottoms[0], perm=list(node.layer_as(Permute).order)
    ),
    "Reorg": _reorg,
    "ShuffleChannel": _shuffle_channel,
    "Slice": _slice,
    "Tile": lambda node, graph: graph.add("Tile", node.bottoms[0], tile_repeats(node)),
}

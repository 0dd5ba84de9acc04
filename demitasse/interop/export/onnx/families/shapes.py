"""Layers that move values, and those that choose some."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from demitasse.interop.export.onnx.converter import Converter
from demitasse.interop.export.onnx.graph import Graph
from demitasse.interop.export.walk import Step
from demitasse.layers.argmax import ArgMax
from demitasse.layers.concat import Concat
from demitasse.layers.permute import Permute
from demitasse.layers.slice import Slice

__all__ = ["CONVERTERS"]

END = 2**31 - 1
"""Where a slice ends that goes on to the end."""


def reshape(step: Step, graph: Graph) -> None:
    """Add Flatten where it is one, else Reshape."""
    [x], [y] = step.bottoms, step.tops
    if len(y.shape) == 2 and len(x.shape) > 2 and x.sizes[0] == y.sizes[0]:
        graph.add("Flatten", x, to=y, axis=1)
    elif x.sizes == y.sizes:
        graph.add("Identity", x, to=y)
    else:
        graph.reshape(x, y.sizes, to=y)


def concat(step: Step, graph: Graph) -> None:
    """Add Concat."""
    graph.add("Concat", *step.bottoms, to=step.tops[0], axis=step.of(Concat).axis)


def slice_(step: Step, graph: Graph) -> None:
    """Add Split; or where sizes are free, a Slice for each top."""
    layer, [x], tops = step.of(Slice), step.bottoms, step.tops
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


def crop(step: Step, graph: Graph) -> None:
    """Add Slice."""
    p, [x, like], [y] = step.layer.param.crop_param, step.bottoms, step.tops
    axis = p.axis % len(x.shape)
    axes = list(range(axis, len(x.shape)))
    offsets = list(p.offset) if len(p.offset) > 1 else list(p.offset or [0]) * len(axes)
    sizes = y.sizes[axis:]
    if all(isinstance(size, int) for size in sizes):
        ends = graph.ints([a + b for a, b in zip(offsets, y.shape[axis:], strict=True)])
    else:
        ends = graph.add("Add", graph.sizes(like.sizes[axis : len(x.shape)]), graph.ints(offsets))
    graph.add("Slice", x, graph.ints(offsets), ends, graph.ints(axes), to=y)


def permute(step: Step, graph: Graph) -> None:
    """Add Transpose."""
    graph.add("Transpose", step.bottoms[0], to=step.tops[0], perm=list(step.of(Permute).order))


def shuffle_channel(step: Step, graph: Graph) -> None:
    """Add Transpose of the groups and their channels."""
    [x], [y], group = step.bottoms, step.tops, step.layer.param.shuffle_channel_param.group
    count, rest = x.shape[1], x.sizes[2:]
    table = graph.reshape(x, [x.sizes[0], group, count // group, *rest])
    behind = range(3, 3 + len(rest))
    turned = graph.add("Transpose", table, perm=[0, 2, 1, *behind])
    graph.reshape(turned, y.sizes, to=y)


def reorg(step: Step, graph: Graph) -> None:
    """Add Transpose of blocks."""
    p, [x], [y] = step.layer.param.reorg_param, step.bottoms, step.tops
    s, (n, (c, h, w)) = p.stride, (x.sizes[0], x.shape[1:])
    less = c // (s * s)
    if p.reverse:
        blocks, order = graph.reshape(x, [n, s, s, less, h, w]), [0, 3, 4, 1, 5, 2]
    else:
        blocks, order = graph.reshape(x, [n, less, h, s, w, s]), [0, 3, 5, 1, 2, 4]
    graph.reshape(graph.add("Transpose", blocks, perm=order), y.sizes, to=y)


def tile(step: Step, graph: Graph) -> None:
    """Add Tile."""
    p, [x] = step.layer.param.tile_param, step.bottoms
    repeats = [1] * len(x.shape)
    repeats[p.axis % len(x.shape)] = p.tiles
    graph.add("Tile", x, graph.ints(repeats), to=step.tops[0])


def argmax(step: Step, graph: Graph) -> None:
    """Add ArgMax or TopK; of equal values Caffe takes the last first."""
    layer, [x], [y] = step.of(ArgMax), step.bottoms, step.tops
    axis = 1 if layer.axis is None else layer.axis
    flat = layer.axis is None and len(x.shape) != 2
    rows = graph.add("Flatten", x, axis=1) if flat else x.name
    values, indices = _largest(step, graph, rows, axis)
    if layer.axis is not None:
        if layer.values:
            graph.add("Identity", values, to=y)
        else:
            graph.floats(indices, to=y)
        return
    best = graph.floats(indices)
    if layer.values:
        middle = graph.ints([1])
        pair = [graph.add("Unsqueeze", one, middle) for one in (best, values)]
        best = graph.add("Concat", *pair, axis=1)
    graph.reshape(best, y.sizes, to=y)


def _largest(step: Step, graph: Graph, x: str, axis: int) -> tuple[str, str]:
    """Add the largest values along an axis, and their indices."""
    layer, shape = step.of(ArgMax), step.bottoms[0].shape
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


def batch_reindex(step: Step, graph: Graph) -> None:
    """Add Gather."""
    x, indices = step.bottoms
    graph.add("Gather", x, graph.integers(indices), to=step.tops[0], axis=0)


def filter_(step: Step, graph: Graph) -> None:
    """Add Gather of the items whose selector is not 0."""
    *sources, selector = step.bottoms
    found = graph.add("NonZero", graph.reshape(selector, [-1]))
    chosen = graph.reshape(found, [-1])
    for source, top in zip(sources, step.tops, strict=True):
        graph.add("Gather", source, chosen, to=top, axis=0)


def parameter(step: Step, graph: Graph) -> None:
    """Add the parameter itself."""
    graph.add("Identity", graph.param(step.layer.blobs[0], "value"), to=step.tops[0])


CONVERTERS: Mapping[str, Converter] = {
    "ArgMax": argmax,
    "BatchReindex": batch_reindex,
    "Concat": concat,
    "Crop": crop,
    "Filter": filter_,
    "Flatten": reshape,
    "Parameter": parameter,
    "Permute": permute,
    "Reorg": reorg,
    "Reshape": reshape,
    "ShuffleChannel": shuffle_channel,
    "Slice": slice_,
    "Tile": tile,
}

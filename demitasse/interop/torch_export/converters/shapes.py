"""Converters of layers that reshape, move or select values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from demitasse.interop.export.layer_facts import crop_offsets, reorg_blocks, tile_repeats
from demitasse.interop.export.layer_graph import LayerNode
from demitasse.interop.torch_export.code import Converter, ModuleCode
from demitasse.layers.argmax import ArgMax
from demitasse.layers.concat import Concat
from demitasse.layers.permute import Permute
from demitasse.layers.slice import Slice


def _reshape(node: LayerNode, code: ModuleCode) -> None:
    """Add flatten or reshape."""
    [x], [y] = node.bottoms, node.tops
    image = code.variable(x)
    if x.sizes == y.sizes:
        code.let(image, y)
    elif len(y.shape) == 2 and len(x.shape) > 2 and x.sizes[0] == y.sizes[0]:
        code.let(f"{image}.flatten(1)", y)
    else:
        code.let(code.reshaped(image, y.sizes), y)


def _method(node: LayerNode, code: ModuleCode, name: str, numbers: Iterable[int]) -> None:
    """Add a call of a method of the bottom."""
    arguments = ", ".join(map(str, numbers))
    code.let(f"{code.variable(node.bottoms[0])}.{name}({arguments})", node.tops[0])


def _concat(node: LayerNode, code: ModuleCode) -> None:
    parts = ", ".join(map(code.variable, node.bottoms))
    code.let(f"torch.cat([{parts}], {node.layer_as(Concat).axis})", node.tops[0])


def _slice(node: LayerNode, code: ModuleCode) -> None:
    """Add split or chunk."""
    layer, [x], tops = node.layer_as(Slice), node.bottoms, node.tops
    image = code.variable(x)
    if len(tops) == 1:
        code.let(image, tops[0])
    elif isinstance(x.sizes[layer.axis], int):
        parts = [last - first for first, last in pairwise(layer.ends)]
        code.let_several(f"torch.split({image}, {parts}, {layer.axis})", tops)
    elif not layer.param.slice_param.slice_point:
        code.let_several(f"torch.chunk({image}, {len(tops)}, {layer.axis})", tops)
    else:
        points = list(layer.ends[1:-1])
        code.let_several(f"torch.tensor_split({image}, {points}, {layer.axis})", tops)


def _crop(node: LayerNode, code: ModuleCode) -> None:
    """Add a slice."""
    [x, _], [y], (axis, offsets) = node.bottoms, node.tops, crop_offsets(node)
    index = [":"] * axis
    for offset, size in zip(offsets, y.sizes[axis:], strict=True):
        if isinstance(size, int):
            index.append(f"{offset}:{offset + size}" if offset else f":{size}")
        else:
            length = code.size(size)
            index.append(f"{offset} : {offset} + {length}" if offset else f": {length}")
    code.let(f"{code.variable(x)}[{', '.join(index)}]", y)


def _shuffle_channel(node: LayerNode, code: ModuleCode) -> None:
    """Add a transposition of the groups and their channels."""
    [x], [y], group = node.bottoms, node.tops, node.layer.param.shuffle_channel_param.group
    groups = f"{code.variable(x)}.unflatten(1, ({group}, {x.shape[1] // group}))"
    code.let(f"{groups}.transpose(1, 2).flatten(1, 2)", y)


def _reorg(node: LayerNode, code: ModuleCode) -> None:
    [x], [y], (sizes, order) = node.bottoms, node.tops, reorg_blocks(node)
    places = ", ".join(map(str, order))
    turned = code.let(f"{code.reshaped(x, sizes)}.permute({places})", "blocks")
    code.let(code.reshaped(turned, y.sizes), y)


def _argmax(node: LayerNode, code: ModuleCode) -> None:
    layer, [x], [y] = node.layer_as(ArgMax), node.bottoms, node.tops
    axis, rows = 1 if layer.axis is None else layer.axis, code.variable(x)
    if layer.axis is None and len(x.shape) != 2:
        rows += ".flatten(1)"
    call = code.call("last_largest", rows, layer.k, axis)
    if layer.axis is not None:
        code.let(f"{call}[{0 if layer.values else 1}]", y)
    elif layer.values:
        values, index = code.let_several(call, ["values", "index"])
        code.let(code.reshaped(f"torch.stack([{index}, {values}], 1)", y.sizes), y)
    else:
        code.let(code.reshaped(f"{call}[1]", y.sizes), y)


def _batch_reindex(node: LayerNode, code: ModuleCode) -> None:
    x, indices = map(code.variable, node.bottoms)
    code.let(f"{x}[{indices}.long()]", node.tops[0])


def _filter(node: LayerNode, code: ModuleCode) -> None:
    """Add an index of the items with a selector other than 0."""
    *sources, selector = map(code.variable, node.bottoms)
    chosen = code.let(f"{selector}.flatten() != 0", "chosen")
    for source, top in zip(sources, node.tops, strict=True):
        code.let(f"{source}[{chosen}]", top)


CONVERTERS: Mapping[str, Converter] = {
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze"), _reshape),
    "ArgMax": _argmax,
    "BatchReindex": _batch_reindex,
    "Concat": _concat,
    "Crop": _crop,
    "Filter": _filter,
    "Parameter": lambda node, code: code.let(
        f'{code.parameters(node, value=node.layer.blobs[0].cpu_data())}["value"]', node.tops[0]
    ),
    "Permute": lambda node, code: _method(node, code, "permute", node.layer_as(Permute).order),
    "Reorg": _reorg,
    "ShuffleChannel": _shuffle_channel,
    "Slice": _slice,
    "Tile": lambda node, code: _method(node, code, "repeat", tile_repeats(node)),
}

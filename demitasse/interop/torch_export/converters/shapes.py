"""Converters of layers that reshape, move or select values."""

from collections.abc import Iterable, Mapping
from itertools import pairwise

from demitasse.interop.export.layer_graph import LayerNode, crop_offsets, reorg_blocks, tile_repeats
from demitasse.interop.torch_export.code import Converter, ModuleCode, Result
from demitasse.layers.argmax import ArgMax
from demitasse.layers.concat import Concat
from demitasse.layers.permute import Permute
from demitasse.layers.slice import Slice


def _reshape(node: LayerNode, code: ModuleCode) -> Result:
    [x], [y] = node.bottoms, node.tops
    image = code.variable(x)
    if x.sizes == y.sizes:
        return image
    if len(y.shape) == 2 and len(x.shape) > 2 and x.sizes[0] == y.sizes[0]:
        return f"{image}.flatten(1)"
    return code.reshaped(image, y.sizes)


def _method(node: LayerNode, code: ModuleCode, name: str, numbers: Iterable[int]) -> Result:
    """Return a call of a method of the bottom."""
    arguments = ", ".join(map(str, numbers))
    return f"{code.variable(node.bottoms[0])}.{name}({arguments})"


def _concat(node: LayerNode, code: ModuleCode) -> Result:
    parts = ", ".join(map(code.variable, node.bottoms))
    return f"torch.cat([{parts}], {node.layer_as(Concat).axis})"


def _slice(node: LayerNode, code: ModuleCode) -> Result:
    layer, [x], tops = node.layer_as(Slice), node.bottoms, node.tops
    image = code.variable(x)
    if len(tops) == 1:
        return image
    how = f"tensor_split({image}, {list(layer.ends[1:-1])}"
    if isinstance(x.sizes[layer.axis], int):
        how = f"split({image}, {[last - first for first, last in pairwise(layer.ends)]}"
    elif not layer.param.slice_param.slice_point:
        how = f"chunk({image}, {len(tops)}"
    return code.let_tops(f"torch.{how}, {layer.axis})", tops, len(tops))


def _crop(node: LayerNode, code: ModuleCode) -> Result:
    [x, _], [y], (axis, offsets) = node.bottoms, node.tops, crop_offsets(node)
    index = [":"] * axis
    for offset, size in zip(offsets, y.sizes[axis:], strict=True):
        if isinstance(size, int):
            index.append(f"{offset}:{offset + size}" if offset else f":{size}")
        else:
            length = code.size(size)
            index.append(f"{offset} : {offset} + {length}" if offset else f": {length}")
    return f"{code.variable(x)}[{', '.join(index)}]"


def _shuffle_channel(node: LayerNode, code: ModuleCode) -> Result:
    """Add a transposition of the groups and their channels."""
    [x], group = node.bottoms, node.layer.param.shuffle_channel_param.group
    groups = f"{code.variable(x)}.unflatten(1, ({group}, {x.shape[1] // group}))"
    return f"{groups}.transpose(1, 2).flatten(1, 2)"


def _reorg(node: LayerNode, code: ModuleCode) -> Result:
    [x], [y], (sizes, order) = node.bottoms, node.tops, reorg_blocks(node)
    places = ", ".join(map(str, order))
    turned = code.let(f"{code.reshaped(x, sizes)}.permute({places})", "blocks")
    return code.reshaped(turned, y.sizes)


def _argmax(node: LayerNode, code: ModuleCode) -> Result:
    layer, [x], [y] = node.layer_as(ArgMax), node.bottoms, node.tops
    axis, rows = 1 if layer.axis is None else layer.axis, code.variable(x)
    if layer.axis is None and len(x.shape) != 2:
        rows += ".flatten(1)" if len(x.shape) > 2 else "[:, None]"
    call = code.call("last_largest", rows, layer.k, axis)
    if layer.axis is not None:
        return f"{call}[{0 if layer.values else 1}]"
    if not layer.values:
        return code.reshaped(f"{call}[1]", y.sizes)
    values, index = code.let_several(call, ["values", "index"])
    return code.reshaped(f"torch.stack([{index}, {values}], 1)", y.sizes)


def _filter(node: LayerNode, code: ModuleCode) -> Result:
    """Add an index of the items with a selector other than 0."""
    *sources, selector = map(code.variable, node.bottoms)
    chosen = code.let(f"{selector}.flatten() != 0", "chosen")
    return [f"{source}[{chosen}]" for source in sources]


CONVERTERS: Mapping[str, Converter] = {
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze"), _reshape),
    "ArgMax": _argmax,
    "BatchReindex": lambda node, code: "{}[{}.long()]".format(*map(code.variable, node.bottoms)),
    "Concat": _concat,
    "Crop": _crop,
    "Filter": _filter,
    "Parameter": lambda node, code: (
        f'{code.parameters(node, value=node.layer.blobs[0].cpu_data())}["value"]'
    ),
    "Permute": lambda node, code: _method(node, code, "permute", node.layer_as(Permute).order),
    "Reorg": _reorg,
    "ShuffleChannel": _shuffle_channel,
    "Slice": _slice,
    "Tile": lambda node, code: _method(node, code, "repeat", tile_repeats(node)),
}

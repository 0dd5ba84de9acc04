"""Layers that move values, and those that choose some."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from demitasse.interop.export.torch.code import Code
from demitasse.interop.export.torch.converter import Converter
from demitasse.interop.export.walk import Step
from demitasse.layers.argmax import ArgMax
from demitasse.layers.concat import Concat
from demitasse.layers.permute import Permute
from demitasse.layers.slice import Slice

__all__ = ["CONVERTERS"]


def reshape(step: Step, code: Code) -> None:
    """Add flatten where it is one, else reshape."""
    [x], [y] = step.bottoms, step.tops
    image = code.variable(x)
    if x.sizes == y.sizes:
        code.let(image, y)
    elif len(y.shape) == 2 and len(x.shape) > 2 and x.sizes[0] == y.sizes[0]:
        code.let(f"{image}.flatten(1)", y)
    else:
        code.let(code.reshaped(image, y.sizes), y)


def concat(step: Step, code: Code) -> None:
    """Add cat."""
    parts = ", ".join(map(code.variable, step.bottoms))
    code.let(f"torch.cat([{parts}], {step.of(Concat).axis})", step.tops[0])


def slice_(step: Step, code: Code) -> None:
    """Add split or chunk."""
    layer, [x], tops = step.of(Slice), step.bottoms, step.tops
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


def crop(step: Step, code: Code) -> None:
    """Add a slice."""
    p, [x, _], [y] = step.layer.param.crop_param, step.bottoms, step.tops
    axis = p.axis % len(x.shape)
    offsets = list(p.offset) if len(p.offset) > 1 else list(p.offset or [0]) * (len(x.shape) - axis)
    index = [":"] * axis
    for offset, size in zip(offsets, y.sizes[axis:], strict=True):
        if isinstance(size, int):
            index.append(f"{offset}:{offset + size}" if offset else f":{size}")
        else:
            length = code.size(size)
            index.append(f"{offset} : {offset} + {length}" if offset else f": {length}")
    code.let(f"{code.variable(x)}[{', '.join(index)}]", y)


def permute(step: Step, code: Code) -> None:
    """Add permute."""
    order = ", ".join(map(str, step.of(Permute).order))
    code.let(f"{code.variable(step.bottoms[0])}.permute({order})", step.tops[0])


def shuffle_channel(step: Step, code: Code) -> None:
    """Add a transposition of the groups and their channels."""
    [x], [y], group = step.bottoms, step.tops, step.layer.param.shuffle_channel_param.group
    groups = f"{code.variable(x)}.unflatten(1, ({group}, {x.shape[1] // group}))"
    code.let(f"{groups}.transpose(1, 2).flatten(1, 2)", y)


def reorg(step: Step, code: Code) -> None:
    """Add a transposition of blocks."""
    p, [x], [y] = step.layer.param.reorg_param, step.bottoms, step.tops
    s, (n, (c, h, w)) = p.stride, (x.sizes[0], x.shape[1:])
    less = c // (s * s)
    blocks, order = [n, less, h, s, w, s], "0, 3, 5, 1, 2, 4"
    if p.reverse:
        blocks, order = [n, s, s, less, h, w], "0, 3, 4, 1, 5, 2"
    turned = code.let(f"{code.reshaped(code.variable(x), blocks)}.permute({order})", "blocks")
    code.let(code.reshaped(turned, y.sizes), y)


def tile(step: Step, code: Code) -> None:
    """Add repeat."""
    p, [x] = step.layer.param.tile_param, step.bottoms
    repeats = ["1"] * len(x.shape)
    repeats[p.axis % len(x.shape)] = str(p.tiles)
    code.let(f"{code.variable(x)}.repeat({', '.join(repeats)})", step.tops[0])


def argmax(step: Step, code: Code) -> None:
    """Add the largest values and where they are; of equal ones Caffe takes the last."""
    layer, [x], [y] = step.of(ArgMax), step.bottoms, step.tops
    axis, rows = 1 if layer.axis is None else layer.axis, code.variable(x)
    if layer.axis is None and len(x.shape) != 2:
        rows += ".flatten(1)"
    call = code.call("last_largest", rows, str(layer.k), str(axis))
    if layer.axis is not None:
        code.let(f"{call}[{0 if layer.values else 1}]", y)
    elif layer.values:
        values, index = code.let_several(call, ["values", "index"])
        code.let(code.reshaped(f"torch.stack([{index}, {values}], 1)", y.sizes), y)
    else:
        code.let(code.reshaped(f"{call}[1]", y.sizes), y)


def batch_reindex(step: Step, code: Code) -> None:
    """Add a look-up of items."""
    x, indices = map(code.variable, step.bottoms)
    code.let(f"{x}[{indices}.long()]", step.tops[0])


def filter_(step: Step, code: Code) -> None:
    """Add a look-up of the items whose selector is not 0."""
    *sources, selector = map(code.variable, step.bottoms)
    chosen = code.let(f"{selector}.flatten() != 0", "chosen")
    for source, top in zip(sources, step.tops, strict=True):
        code.let(f"{source}[{chosen}]", top)


def parameter(step: Step, code: Code) -> None:
    """Add the parameter itself."""
    weights = code.parameters(step, value=step.layer.blobs[0].cpu_data())
    code.let(f'{weights}["value"]', step.tops[0])


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

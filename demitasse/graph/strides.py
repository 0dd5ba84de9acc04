"""Strides that move up: pixels without a reader are not computed.

A 1x1 convolution of stride 2 reads one pixel of four. If the bottom has no other reader, the
convolution that writes the bottom takes the stride, and summands are subsampled before the sum.
ResNets with strides in the first 1x1 convolution of a stage, as Caffe's, have this pattern.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy

from demitasse.graph.splits import Top, producers
from demitasse.io.proto import LayerParameter, NetParameter, Phase, PoolingParameter

EACH_PIXEL = frozenset(
    {
        "AbsVal", "BNLL", "Clip", "Dropout", "ELU", "Exp", "GELU", "PReLU", "Power", "ReLU",
        "ReLU6", "Sigmoid", "Swish", "TanH",
    }
)  # fmt: skip
"""Types whose result at a pixel is made of that pixel alone, in phase TEST; BatchNorm, Scale and
Eltwise are, too, with most fields."""

OTHER_WINDOWS = (
    "kernel_shape", "stride_shape", "pad_shape", "kernel_depth", "temporal_stride", "temporal_pad",
)  # fmt: skip
"""Fields of forks that give windows along other axes than height and width."""

Read = Mapping[tuple[int, int], Top]  # top that each bottom of each layer reads


def move_strides(
    net: NetParameter, kept: Collection[str], origins: Sequence[str] = ()
) -> tuple[NetParameter, list[int]]:
    """Return a net with the same outputs that does not compute pixels without a reader.

    ``kept`` are the names of blobs that are read besides the outputs. The second result has for
    each layer the index of the layer it comes from; -1 for new layers.
    """
    read = producers(net, origins)
    if not {*kept} <= {blob for layer in net.layer for blob in layer.top}:
        return net, list(range(len(net.layer)))  # copies that Split layers make, or none at all
    wanted = _wanted(net, read, kept)
    thin = _thinned(net, read, wanted)
    whole = {
        blob
        for i, layer in enumerate(net.layer)
        for j, blob in enumerate(layer.bottom)
        if (i, 0) in thin and blob == layer.top[0] and read[i, j] not in thin
    }
    if whole:  # in place of all pixels
        return move_strides(net, {*kept, *whole}, origins)
    if not thin:
        return net, list(range(len(net.layer)))
    moved, origin = deepcopy(net), []
    del moved.layer[:]
    for i, layer in enumerate(net.layer):
        copy = deepcopy(layer)
        if layer.type == "Convolution" and layer.bottom:
            before, after = (thin.get(top, 1) for top in (read[i, 0], (i, 0)))
            if (before, after) != (1, 1):
                p = copy.convolution_param
                for name in ("stride", "stride_h", "stride_w"):
                    p.ClearField(name)
                p.stride.append(_stride(layer) * after // before)
        for j, blob in enumerate(layer.bottom if layer.type == "Eltwise" else ()):
            if (i, 0) in thin and read[i, j] not in thin:
                copy.bottom[j] = f"{blob}_{layer.name}_{j}_thinned"
                moved.layer.append(_thinning(blob, copy.bottom[j], thin[i, 0]))
                origin.append(-1)
        moved.layer.append(copy)
        origin.append(i)
    return moved, origin


def _wanted(net: NetParameter, read: Read, kept: Collection[str]) -> dict[Top, int]:
    """Return the stride with which all that read a top do, where it is above 1."""
    readers: defaultdict[Top, list[int]] = defaultdict(list)
    for (i, _), top in read.items():
        readers[top].append(i)
    wanted: dict[Top, int] = {}
    for i, layer in reversed([*enumerate(net.layer)]):
        if len(layer.top) != 1 or layer.top[0] in kept or any(layer.loss_weight):
            continue
        strides = {_reads(net.layer[r], wanted.get((r, 0), 1)) for r in readers[i, 0]}
        if len(strides) == 1 and max(strides) > 1:
            wanted[i, 0] = strides.pop()
    return wanted


def _reads(layer: LayerParameter, stride: int) -> int:
    """Return the stride at which a layer reads each bottom, for its top to have the given one."""
    if layer.type == "Convolution":
        return _stride(layer) * stride if _is_pointwise(layer) else 1
    return stride if _keeps_pixels(layer) else 1


def _thinned(net: NetParameter, read: Read, wanted: Mapping[Top, int]) -> dict[Top, int]:
    """Return the tops that are computed with their stride, since some convolution gains."""
    thin: dict[Top, int] = {}
    for i, layer in enumerate(net.layer):
        if (i, 0) not in wanted:
            continue
        if layer.type == "Convolution":
            gains = len(layer.bottom) == 1 and _stride(layer) > 0
            gains = gains and layer.convolution_param.axis == 1
        else:
            below = [read[i, j] in thin for j in range(len(layer.bottom))]
            gains = _keeps_pixels(layer) and any(below)
        if gains:
            thin[i, 0] = wanted[i, 0]
    return thin


def _keeps_pixels(layer: LayerParameter) -> bool:
    """Return True if each pixel of the top is made of the same pixel of every bottom."""
    if layer.type == "Eltwise":
        return True
    if len(layer.bottom) != 1 or (layer.HasField("phase") and layer.phase == Phase.Value("TRAIN")):
        return False
    if layer.type == "BatchNorm":
        p = layer.batch_norm_param
        return p.use_global_stats or not p.HasField("use_global_stats")
    if layer.type == "Scale":
        return layer.scale_param.axis == layer.scale_param.num_axes == 1
    return layer.type in EACH_PIXEL


def _is_pointwise(layer: LayerParameter) -> bool:
    """Return True for a convolution of single pixels, with one stride along all axes."""
    p = layer.convolution_param
    sizes = [*p.kernel_size, p.kernel_h or 1, p.kernel_w or 1]
    pads = [*p.pad, p.pad_h, p.pad_w, p.pad_t, p.pad_l, p.pad_b, p.pad_r]
    one = len(layer.bottom) == 1 and p.axis == 1
    return one and {*sizes} == {1} and not any(pads) and _stride(layer) > 0


def _stride(layer: LayerParameter) -> int:
    """Return a convolution's stride; 0 where axes have others."""
    p = layer.convolution_param
    if any(map(p.HasField, OTHER_WINDOWS)):
        return 0
    given = {*p.stride}
    if p.HasField("stride_h") or p.HasField("stride_w"):
        given |= {p.stride_h, p.stride_w}
    return given.pop() if len(given) == 1 else int(not given)


def _thinning(bottom: str, top: str, stride: int) -> LayerParameter:
    """Return a layer that takes every pixel of that stride; means of one, for NaN stays in them."""
    layer = LayerParameter(name=top, type="Pooling", bottom=[bottom], top=[top])
    p = layer.pooling_param
    p.pool, p.kernel_size, p.stride = PoolingParameter.AVE, 1, stride
    p.round_mode = PoolingParameter.FLOOR
    return layer

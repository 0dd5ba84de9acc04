"""A net's message as a short list of operations, which other engines' nets are made from.

Only what the measured nets use. A batch normalisation and the scale after it are one operation,
as every other engine has them; what runs in place gets an output of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from demitasse.io.proto import LayerParameter, NetParameter, PoolingParameter

__all__ = ["Operation", "operations"]


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        kind: conv, deconv, ip, lstm, max, ave, unpool, relu, relu6, prelu, lrn, bn, concat, add,
            crop, permute, shuffle, reshape, flatten, softmax or loss. A ``max`` with a mask also
            makes ``NAME/mask``.
        name: Of the layer, and of what it makes.
        inputs: Names of operations, or "data", "label".
        fields: Numbers that describe it.
        weights: Keys of its parameters.
    """

    kind: str
    name: str
    inputs: tuple[str, ...]
    fields: dict[str, Any] = field(default_factory=dict)
    weights: tuple[str, ...] = ()


def operations(net: NetParameter) -> Iterator[Operation]:
    """Yield the operations of a net in order.

    Raises:
        ValueError: A layer type is not among those known here.
    """
    made: dict[str, str] = {}
    sizes: dict[str, tuple[int, ...]] = {}
    layers = list(net.layer)
    while layers:
        layer = layers.pop(0)
        if layer.type == "Input":
            made[layer.top[0]] = layer.top[0]
            sizes[layer.top[0]] = tuple(layer.input_param.shape[0].dim)
            continue
        inputs = tuple(made[bottom] for bottom in layer.bottom)
        if layer.type in {"LSTM", "Crop"}:  # the sequences are whole; the size is in the fields
            inputs = inputs[:1]
        if layer.type == "Dropout":  # nets that train have none
            made[layer.top[0]] = inputs[0]
            continue
        if layer.type == "BatchNorm":
            operation = _batch_norm(layer, layers.pop(0), inputs)
        else:
            kind, fields, count = _described(layer, sizes)
            weights = tuple(f"{layer.name}/{i}" for i in range(count))
            operation = Operation(kind, layer.name, inputs, fields, weights)
        for top, name in zip(layer.top, (operation.name, f"{operation.name}/mask"), strict=False):
            made[top] = name
        yield operation


def _sides(both: Sequence[int], height: int, width: int, default: int) -> int | tuple[int, int]:
    """Return the number of both axes, or those of rows and columns."""
    if both:
        return both[0]
    return (height, width) if height or width else default


def _described(
    layer: LayerParameter, sizes: Mapping[str, tuple[int, ...]]
) -> tuple[str, dict[str, Any], int]:
    """Return kind, fields and number of parameters of a layer.

    Args:
        layer: Its message.
        sizes: Shapes of the net's inputs.
    """
    match layer.type:
        case "Convolution" | "Deconvolution":
            p = layer.convolution_param
            fields = {
                "kernel": _sides(p.kernel_size, p.kernel_h, p.kernel_w, 1),
                "stride": _sides(p.stride, p.stride_h, p.stride_w, 1),
                "pad": _sides(p.pad, p.pad_h, p.pad_w, 0),
                "dilation": p.dilation[0] if p.dilation else 1,
                "group": p.group,
            }
            kind = "conv" if layer.type == "Convolution" else "deconv"
            return kind, fields, 2 if p.bias_term else 1
        case "InnerProduct":
            p = layer.inner_product_param
            return "ip", {"axis": p.axis}, 2 if p.bias_term else 1
        case "LSTM":
            return "lstm", {"outputs": layer.recurrent_param.num_output}, 3
        case "Pooling":
            p = layer.pooling_param
            kind = {PoolingParameter.MAX: "max", PoolingParameter.AVE: "ave"}[p.pool]
            size = {"kernel": p.kernel_size, "stride": p.stride, "pad": p.pad}
            size["mask"] = len(layer.top) > 1
            return kind, {"everything": True} if p.global_pooling else size, 0
        case "Upsample":
            return "unpool", {"scale": layer.upsample_param.scale}, 0
        case "Crop":
            p = layer.crop_param
            return "crop", {"offset": p.offset[0], "size": sizes[layer.bottom[1]][p.axis :]}, 0
        case "Permute":
            return "permute", {"order": list(layer.permute_param.order)}, 0
        case "Reshape":
            return "reshape", {"shape": list(layer.reshape_param.shape.dim)}, 0
        case "LRN":
            p = layer.lrn_param
            return "lrn", {"size": p.local_size, "alpha": p.alpha, "beta": p.beta, "k": p.k}, 0
        case "ReLU" | "ReLU6":
            return layer.type.lower(), {}, 0
        case "PReLU":
            return "prelu", {}, 1
        case "ShuffleChannel":
            return "shuffle", {"group": layer.shuffle_channel_param.group}, 0
        case "Concat":
            return "concat", {}, 0
        case "Eltwise":
            return "add", {}, 0
        case "Flatten":
            return "flatten", {}, 0
        case "Softmax":
            return "softmax", {"axis": layer.softmax_param.axis}, 0
        case "SoftmaxWithLoss":
            return "loss", {}, 0
    message = f"layer {layer.name!r}: a {layer.type} layer is not translated for other engines"
    raise ValueError(message)


def _batch_norm(norm: LayerParameter, scale: LayerParameter, inputs: tuple[str, ...]) -> Operation:
    if scale.type != "Scale" or list(scale.bottom) != list(norm.top):
        message = f"layer {norm.name!r}: a BatchNorm without a Scale after it is not translated"
        raise ValueError(message)
    p = norm.batch_norm_param
    weights = (*(f"{scale.name}/{i}" for i in range(2)), *(f"{norm.name}/{i}" for i in range(3)))
    fields = {"eps": p.eps, "fraction": p.moving_average_fraction}
    return Operation("bn", norm.name, inputs, fields, weights)

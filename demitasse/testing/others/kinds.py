"""Operations of ONNX and PyTorch in Caffe's terms: types of layers, and what parameters are for."""

from __future__ import annotations

from demitasse.net import Net

__all__ = ["kind_of", "kinds_of_layers", "role_of"]

_KINDS = {
    "AbsVal": "Abs abs",
    "BatchNorm": "BatchNormalization batch_norm _native_batch_norm_legit_no_training",
    "Clip": "Clip clamp hardtanh",
    "Concat": "Concat cat",
    "Convolution": "Conv conv1d conv2d conv3d convolution",
    "Deconvolution": "ConvTranspose conv_transpose1d conv_transpose2d conv_transpose3d",
    "Dropout": "Dropout dropout",
    "ELU": "Elu elu",
    "Flatten": "Flatten flatten",
    "GELU": "Gelu gelu",
    "InnerProduct": "Gemm linear addmm",
    "LRN": "LRN",
    "PReLU": "PRelu prelu",
    "Permute": "Transpose permute transpose",
    "Pooling": "MaxPool AveragePool GlobalMaxPool GlobalAveragePool max_pool1d max_pool2d "
    "max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool2d adaptive_max_pool2d",
    "ReLU": "Relu LeakyRelu relu leaky_relu relu_",
    "Reshape": "Reshape reshape view",
    "Sigmoid": "Sigmoid sigmoid",
    "Slice": "Slice Split slice split chunk",
    "Softmax": "Softmax softmax _softmax",
    "TanH": "Tanh tanh",
}
_KIND = {operation: kind for kind, names in _KINDS.items() for operation in names.split()}

_WEIGHTED = dict.fromkeys(("Convolution", "Deconvolution", "InnerProduct"), ("weight", "bias"))
_ROLES: dict[str, tuple[str, ...]] = {
    **_WEIGHTED,
    "BatchNorm": ("scale", "shift", "mean", "variance"),
    "PReLU": ("slope",),
}


def kind_of(operation: str) -> str:
    """Return the type of layer that computes what an operation does, or an empty string."""
    return _KIND.get(operation, "")


def role_of(operation: str, position: int) -> str:
    """Return what an operation's parameter is for, by its position behind the data, from 0."""
    if operation == "MatMul" and position == 0:
        return "weight"
    roles = _ROLES.get(kind_of(operation), ())
    return roles[position] if 0 <= position < len(roles) else ""


def kinds_of_layers(net: Net) -> dict[str, str]:
    """Return, for each layer, what kind of operation computes its top.

    That is its type; but BatchNorm and the Scale after it are one operation elsewhere, whose
    result is the Scale's.
    """
    found = {layer.name: layer.type for layer in net.layers}
    wrote: dict[int, str] = {}  # blob -> the layer that wrote it last
    for index, layer in enumerate(net.layers):
        bottoms = net.structure.bottom_ids(index)
        before = wrote.get(bottoms[0], "") if bottoms else ""
        if layer.type == "Scale" and found.get(before) == "BatchNorm":
            found[before], found[layer.name] = "BatchNorm without Scale", "BatchNorm"
        wrote |= dict.fromkeys(net.structure.top_ids(index), layer.name)
    return found

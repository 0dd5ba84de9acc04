"""V1 to the current format: ``layers`` become ``layer``, enums become type names.

Source: Caffe, ``src/caffe/util/upgrade_proto.cpp`` (UpgradeV1Net, UpgradeV1LayerParameter).
"""

from collections.abc import Iterable

from demitasse.io.proto.caffe_pb2 import LayerParameter, NetParameter, V1LayerParameter
from demitasse.io.proto.upgrade_notes import Problem

__all__ = ["upgrade_v1"]

TYPES = {
    V1LayerParameter.NONE: "",
    V1LayerParameter.ABSVAL: "AbsVal",
    V1LayerParameter.ACCURACY: "Accuracy",
    V1LayerParameter.ARGMAX: "ArgMax",
    V1LayerParameter.BNLL: "BNLL",
    V1LayerParameter.CONCAT: "Concat",
    V1LayerParameter.CONTRASTIVE_LOSS: "ContrastiveLoss",
    V1LayerParameter.CONVOLUTION: "Convolution",
    V1LayerParameter.DATA: "Data",
    V1LayerParameter.DECONVOLUTION: "Deconvolution",
    V1LayerParameter.DROPOUT: "Dropout",
    V1LayerParameter.DUMMY_DATA: "DummyData",
    V1LayerParameter.ELTWISE: "Eltwise",
    V1LayerParameter.EUCLIDEAN_LOSS: "EuclideanLoss",
    V1LayerParameter.EXP: "Exp",
    V1LayerParameter.FLATTEN: "Flatten",
    V1LayerParameter.HDF5_DATA: "HDF5Data",
    V1LayerParameter.HDF5_OUTPUT: "HDF5Output",
    V1LayerParameter.HINGE_LOSS: "HingeLoss",
    V1LayerParameter.IM2COL: "Im2col",
    V1LayerParameter.IMAGE_DATA: "ImageData",
    V1LayerParameter.INFOGAIN_LOSS: "InfogainLoss",
    V1LayerParameter.INNER_PRODUCT: "InnerProduct",
    V1LayerParameter.LRN: "LRN",
    V1LayerParameter.MEMORY_DATA: "MemoryData",
    V1LayerParameter.MULTINOMIAL_LOGISTIC_LOSS: "MultinomialLogisticLoss",
    V1LayerParameter.MVN: "MVN",
    V1LayerParameter.POOLING: "Pooling",
    V1LayerParameter.POWER: "Power",
    V1LayerParameter.RELU: "ReLU",
    V1LayerParameter.SIGMOID: "Sigmoid",
    V1LayerParameter.SIGMOID_CROSS_ENTROPY_LOSS: "SigmoidCrossEntropyLoss",
    V1LayerParameter.SILENCE: "Silence",
    V1LayerParameter.SLICE: "Slice",
    V1LayerParameter.SOFTMAX: "Softmax",
    V1LayerParameter.SOFTMAX_LOSS: "SoftmaxWithLoss",
    V1LayerParameter.SPLIT: "Split",
    V1LayerParameter.TANH: "TanH",
    V1LayerParameter.THRESHOLD: "Threshold",
    V1LayerParameter.WINDOW_DATA: "WindowData",
}
# Per-parameter fields of V1, and the ParamSpec fields that replaced them.
SPECS = {
    "param": "name",
    "blob_share_mode": "share_mode",
    "blobs_lr": "lr_mult",
    "weight_decay": "decay_mult",
}


def upgrade_v1(net: NetParameter) -> list[str]:
    """Replace ``layers`` by ``layer``, in place; floats of parameters are copied in blocks."""
    if not net.layers:
        return []
    notes = [f"{len(net.layers)} V1 layers (layers {{ type: CONVOLUTION }}) were upgraded"]
    if net.layer:
        notes.append(
            Problem(
                f"the file has both 'layers' (V1) and 'layer' entries; the {len(net.layer)} "
                "'layer' entries were dropped"
            )
        )
        net.ClearField("layer")
    for old in net.layers:
        _upgrade_layer(old, net.layer.add())
    net.ClearField("layers")
    return notes


def _upgrade_layer(old: V1LayerParameter, new: LayerParameter) -> None:
    for field, value in old.ListFields():
        if field.name == "type":
            new.type = TYPES[value]
        elif field.name in SPECS:
            _set_each(new, SPECS[field.name], value)
        elif isinstance(value, str):
            setattr(new, field.name, value)
        else:  # both formats share these messages and field names
            getattr(new, field.name).MergeFrom(value)


def _set_each(layer: LayerParameter, name: str, values: Iterable[str | float]) -> None:
    """Set a field of parameter i to value i, adding ParamSpecs as needed."""
    for i, value in enumerate(values):
        spec = layer.param[i] if i < len(layer.param) else layer.param.add()
        setattr(spec, name, value)

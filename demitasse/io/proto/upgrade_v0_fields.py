"""Place of each V0 field in V1, by layer type.

Source: Caffe, ``src/caffe/util/upgrade_proto.cpp`` (UpgradeV0LayerParameter, UpgradeV0LayerType).
"""

from demitasse.io.proto.caffe_pb2 import V1LayerParameter as Old

__all__ = ["COMMON", "MOVES", "TYPES"]

TYPES = {
    "accuracy": Old.ACCURACY,
    "bnll": Old.BNLL,
    "concat": Old.CONCAT,
    "conv": Old.CONVOLUTION,
    "data": Old.DATA,
    "dropout": Old.DROPOUT,
    "euclidean_loss": Old.EUCLIDEAN_LOSS,
    "flatten": Old.FLATTEN,
    "hdf5_data": Old.HDF5_DATA,
    "hdf5_output": Old.HDF5_OUTPUT,
    "im2col": Old.IM2COL,
    "images": Old.IMAGE_DATA,
    "infogain_loss": Old.INFOGAIN_LOSS,
    "innerproduct": Old.INNER_PRODUCT,
    "lrn": Old.LRN,
    "multinomial_logistic_loss": Old.MULTINOMIAL_LOGISTIC_LOSS,
    "pool": Old.POOLING,
    "relu": Old.RELU,
    "sigmoid": Old.SIGMOID,
    "softmax": Old.SOFTMAX,
    "softmax_loss": Old.SOFTMAX_LOSS,
    "split": Old.SPLIT,
    "tanh": Old.TANH,
    "window_data": Old.WINDOW_DATA,
}

COMMON = frozenset({"blobs", "blobs_lr", "weight_decay"})

_SOURCES = ("data", "hdf5_data", "images", "window_data")
_PARAMS = {
    "conv": "convolution_param",
    "innerproduct": "inner_product_param",
    "pool": "pooling_param",
    "dropout": "dropout_param",
    "lrn": "lrn_param",
    "data": "data_param",
    "hdf5_data": "hdf5_data_param",
    "images": "image_data_param",
    "window_data": "window_data_param",
    "infogain_loss": "infogain_loss_param",
    "concat": "concat_param",
}


def _to(name: str, *types: str) -> dict[str, str]:
    return {kind: f"{_PARAMS[kind]}.{name}" for kind in types}


def _all(place: str) -> dict[str, str]:
    return dict.fromkeys([*TYPES, "padding"], place)


# V0 field -> layer type -> V1 field; other types cannot have the field.
MOVES: dict[str, dict[str, str]] = {
    "num_output": _to("num_output", "conv", "innerproduct"),
    "biasterm": _to("bias_term", "conv", "innerproduct"),
    "weight_filler": _to("weight_filler", "conv", "innerproduct"),
    "bias_filler": _to("bias_filler", "conv", "innerproduct"),
    "pad": _to("pad", "conv", "pool"),
    "kernelsize": _to("kernel_size", "conv", "pool"),
    "group": _to("group", "conv"),
    "stride": _to("stride", "conv", "pool"),
    "pool": _to("pool", "pool"),
    "dropout_ratio": _to("dropout_ratio", "dropout"),
    "local_size": _to("local_size", "lrn"),
    "alpha": _to("alpha", "lrn"),
    "beta": _to("beta", "lrn"),
    "k": _to("k", "lrn"),
    "source": _to("source", *_SOURCES, "infogain_loss"),
    "batchsize": _to("batch_size", *_SOURCES),
    "rand_skip": _to("rand_skip", "data", "images"),
    "shuffle_images": _to("shuffle", "images"),
    "new_height": _to("new_height", "images"),
    "new_width": _to("new_width", "images"),
    "concat_dim": _to("concat_dim", "concat"),
    "det_fg_threshold": _to("fg_threshold", "window_data"),
    "det_bg_threshold": _to("bg_threshold", "window_data"),
    "det_fg_fraction": _to("fg_fraction", "window_data"),
    "det_context_pad": _to("context_pad", "window_data"),
    "det_crop_mode": _to("crop_mode", "window_data"),
    "hdf5_output_param": {"hdf5_output": "hdf5_output_param"},
    "scale": _all("transform_param.scale"),
    "meanfile": _all("transform_param.mean_file"),
    "cropsize": _all("transform_param.crop_size"),
    "mirror": _all("transform_param.mirror"),
}

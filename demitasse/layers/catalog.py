"""Which module defines each layer type, so that a type is imported when a net first uses it."""

from __future__ import annotations

__all__ = ["CATALOG", "FOREIGN"]

_MODULES = {
    "absval": ("AbsVal",),
    "accuracy": ("Accuracy",),
    "argmax": ("ArgMax",),
    "batch_norm": ("BatchNorm",),
    "batch_reindex": ("BatchReindex",),
    "bias": ("Bias",),
    "bnll": ("BNLL",),
    "clip": ("Clip",),
    "concat": ("Concat",),
    "contrastive_loss": ("ContrastiveLoss",),
    "convolution": ("Convolution",),
    "crop": ("Crop",),
    "data": ("Data",),
    "deconvolution": ("Deconvolution",),
    "dropout": ("Dropout",),
    "dummy_data": ("DummyData",),
    "eltwise": ("Eltwise",),
    "elu": ("ELU",),
    "embed": ("Embed",),
    "euclidean_loss": ("EuclideanLoss",),
    "exp": ("Exp",),
    "filter": ("Filter",),
    "flatten": ("Flatten",),
    "hdf5_data": ("HDF5Data",),
    "hdf5_output": ("HDF5Output",),
    "hinge_loss": ("HingeLoss",),
    "im2col": ("Im2col",),
    "image_data": ("ImageData",),
    "infogain_loss": ("InfogainLoss",),
    "inner_product": ("InnerProduct",),
    "input": ("Input",),
    "log": ("Log",),
    "lrn": ("LRN",),
    "lstm": ("LSTM",),
    "lstm_unit": ("LSTMUnit",),
    "memory_data": ("MemoryData",),
    "multinomial_logistic_loss": ("MultinomialLogisticLoss",),
    "mvn": ("MVN",),
    "parameter": ("Parameter",),
    "pooling": ("Pooling",),
    "power": ("Power",),
    "prelu": ("PReLU",),
    "python": ("Python",),
    "reduction": ("Reduction",),
    "relu": ("ReLU",),
    "reshape": ("Reshape",),
    "rnn": ("RNN",),
    "scale": ("Scale",),
    "sigmoid": ("Sigmoid",),
    "sigmoid_cross_entropy_loss": ("SigmoidCrossEntropyLoss",),
    "silence": ("Silence",),
    "slice": ("Slice",),
    "softmax": ("Softmax",),
    "softmax_loss": ("SoftmaxWithLoss",),
    "split": ("Split",),
    "spp": ("SPP",),
    "swish": ("Swish",),
    "tanh": ("TanH",),
    "threshold": ("Threshold",),
    "tile": ("Tile",),
    "window_data": ("WindowData",),
}

CATALOG = {
    name: f"demitasse.layers.{module}" for module, names in _MODULES.items() for name in names
}

FOREIGN: dict[str, str] = {
    name: fork
    for fork, names in {
        "the SSD fork of Caffe": (
            "AnnotatedData", "VideoData", "PriorBox", "MultiBoxLoss", "DetectionOutput",
            "DetectionEvaluate", "Permute", "Normalize", "SmoothL1Loss",
        ),
        "NVCaffe": ("Axpy", "L1Loss", "DetectNetTransformation"),
        "Intel Caffe": ("ROIPooling", "PSROIPooling", "SpatialDropout", "Reorg", "RegionLoss"),
        "caffe-windows": ("CenterLoss", "FocalLoss", "TripletLoss", "Proposal", "Resize"),
        "DeepLab": ("Interp", "DenseCRF", "ImageSegData", "SegAccuracy"),
        "SegNet and PSPNet": ("BN", "Upsample"),
        "ShuffleNet and MobileNet forks": (
            "ShuffleChannel", "ConvolutionDepthwise", "DepthwiseConvolution", "ReLU6",
        ),
    }.items()
    for name in names
}  # fmt: skip

"""Metadata of losses, metrics, data layers and detection layers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from demitasse.layers.metadata.schema import (
    ALWAYS,
    BOTTOMS,
    WEIGHED,
    Condition,
    LayerMetadata,
    ParamMetadata,
)

SECOND_TOP = Condition("with a second top", lambda param, phase: len(param.top) > 1)

_loss = partial(LayerMetadata, better="smaller", backward_inputs=BOTTOMS)

LOSSES: Mapping[str, LayerMetadata] = {
    "CenterLoss": _loss(
        fields=("center_loss_param",),
        params=(ParamMetadata("centres", "value", "center_loss_param.center_filler"),),
        backward_inputs=WEIGHED,
        bottom_kinds={1: "indices"},
    ),
    "ContrastiveLoss": _loss(
        fields=("contrastive_loss_param",), reference="Caffe", bottom_kinds={2: "marks"}
    ),
    "EuclideanLoss": _loss(op="PairLoss", reference="Caffe"),
    "FocalLoss": _loss(
        fields=("focal_loss_param", "loss_param", "softmax_param"),
        contains=("Softmax", "Sigmoid"),
        bottom_kinds={1: "indices"},
    ),
    "HingeLoss": _loss(
        fields=("hinge_loss_param",), reference="Caffe", bottom_kinds={1: "classes"}
    ),
    "InfogainLoss": _loss(
        fields=("infogain_loss_param", "loss_param"),
        reference="Caffe",
        contains=("Softmax",),
        bottom_kinds={1: "classes"},
        source="infogain_loss_param.source",
    ),
    "MultinomialLogisticLoss": _loss(reference="Caffe", bottom_kinds={1: "classes"}),
    "SigmoidCrossEntropyLoss": _loss(
        fields=("loss_param",), op="PairLoss", reference="Caffe", contains=("Sigmoid",)
    ),
    "MultiBoxLoss": _loss(
        fields=("multibox_loss_param", "loss_param"), bottom_kinds={2: "priors", 3: "objects"}
    ),
    "SmoothL1Loss": _loss(fields=("smooth_l1_loss_param",)),
    "SmoothL1LossOHEM": _loss(fields=("smooth_l1_loss_param", "loss_param")),
    "SoftmaxWithLoss": _loss(
        fields=("loss_param", "softmax_param"),
        op="SoftmaxLoss",
        reference="Caffe",
        backward_inputs={"bottoms": ALWAYS, "second top": SECOND_TOP},
        contains=("Softmax",),
        bottom_kinds={1: "classes"},
    ),
    "SoftmaxWithLossOHEM": _loss(
        fields=("loss_param", "softmax_param"),
        backward_inputs={"bottoms": ALWAYS, "second top": SECOND_TOP},
        contains=("Softmax",),
        bottom_kinds={1: "classes"},
    ),
    "TripletLoss": _loss(fields=("triplet_loss_param",)),
}


METRICS: Mapping[str, LayerMetadata] = {
    "Accuracy": LayerMetadata(
        fields=("accuracy_param",),
        op="Accuracy",
        gradient="none",
        reference="Caffe",
        better="larger",
        result=True,
        bottom_kinds={1: "classes"},
    ),
    "ArgMax": LayerMetadata(
        fields=("argmax_param",), gradient="none", reference="Caffe", result=True
    ),
    "SegAccuracy": LayerMetadata(
        fields=("seg_accuracy_param",),
        gradient="none",
        better="larger",
        result=True,
        bottom_kinds={1: "classes"},
    ),
}


_data = partial(LayerMetadata, gradient="source", host=True, records=True)

DATA_LAYERS: Mapping[str, LayerMetadata] = {
    "AnnotatedData": _data(
        fields=("annotated_data_param", "data_param", "transform_param"), source="data_param.source"
    ),
    "Data": _data(
        fields=("data_param", "transform_param"), reference="Caffe", source="data_param.source"
    ),
    "DummyData": LayerMetadata(fields=("dummy_data_param",), gradient="source", host=True),
    "HDF5Data": _data(
        fields=("hdf5_data_param", "data_param.prefetch"),
        reference="Caffe",
        source="hdf5_data_param.source",
    ),
    "HDF5Output": LayerMetadata(
        fields=("hdf5_output_param",), gradient="none", host=True, result=True
    ),
    "ImageData": _data(
        fields=("image_data_param", "transform_param", "data_param.prefetch"),
        reference="Caffe",
        source="image_data_param.source",
    ),
    "DenseImageData": _data(
        fields=("dense_image_data_param", "transform_param", "data_param.prefetch"),
        source="dense_image_data_param.source",
    ),
    "ImageSegData": _data(
        fields=("image_data_param", "transform_param", "data_param.prefetch"),
        source="image_data_param.source",
    ),
    "Input": LayerMetadata(
        fields=("input_param",), gradient="source", reference="Caffe", moves="nothing"
    ),
    "MemoryData": _data(fields=("memory_data_param", "transform_param")),
    "Parameter": LayerMetadata(
        fields=("parameter_param",),
        gradient="source",
        reference="Caffe",
        params=(ParamMetadata("value", "value"),),
        moves="nothing",
    ),
    "Python": LayerMetadata(
        fields=("python_param",), host=True, records=True, opaque=True, known=False
    ),
    "WindowData": _data(
        fields=("window_data_param", "transform_param", "data_param.prefetch"),
        source="window_data_param.source",
    ),
}


DETECTION: Mapping[str, LayerMetadata] = {
    "BoxAnnotatorOHEM": LayerMetadata(
        fields=("box_annotator_ohem_param",),
        gradient="none",
        host=True,
        bottom_kinds={0: "regions"},
    ),
    "DetectionEvaluate": LayerMetadata(
        fields=("detection_evaluate_param",),
        gradient="none",
        host=True,
        better="larger",
        result=True,
        bottom_kinds={1: "objects"},
    ),
    "DetectionOutput": LayerMetadata(
        fields=("detection_output_param",),
        gradient="none",
        reference="OpenCV",
        host=True,
        result=True,
    ),
    "PriorBox": LayerMetadata(
        fields=("prior_box_param",),
        op="Constant",
        gradient="none",
        reference="OpenCV",
        moves="tops",
    ),
    "Proposal": LayerMetadata(fields=("proposal_param",), gradient="none", host=True),
    "PSROIPooling": LayerMetadata(
        fields=("psroi_pooling_param",), op="PSROIPool", bottom_kinds={1: "regions"}
    ),
    "BoxGroupOutput": LayerMetadata(
        fields=("box_group_output_param", "bbox_reg_param"), gradient="none", host=True
    ),
    "DecodeBBox": LayerMetadata(
        fields=("decode_bbox_param", "bbox_reg_param"),
        gradient="none",
        host=True,
        bottom_kinds={1: "regions"},
    ),
    "YoloDetectionOutput": LayerMetadata(
        fields=("yolo_detection_output_param",), gradient="none", host=True
    ),
    "Yolov3DetectionOutput": LayerMetadata(
        fields=("yolov3_detection_output_param",), gradient="none", host=True
    ),
    "ROIAlign": LayerMetadata(fields=("roi_pooling_param",), bottom_kinds={1: "regions"}),
    "ROIPooling": LayerMetadata(
        fields=("roi_pooling_param",),
        op="ROIPool",
        backward_inputs=BOTTOMS,
        bottom_kinds={1: "regions"},
    ),
}

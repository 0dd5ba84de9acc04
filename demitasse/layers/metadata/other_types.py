"""Metadata of losses, metrics, data layers and detection layers."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.layers.metadata.schema import (
    ALWAYS,
    BOTTOMS,
    WEIGHED,
    Condition,
    LayerMetadata,
    ParamMetadata,
)

SECOND_TOP = Condition("with a second top", lambda param, phase: len(param.top) > 1)

LOSSES: Mapping[str, LayerMetadata] = {
    "CenterLoss": LayerMetadata(
        fields=("center_loss_param",),
        params=(ParamMetadata("centres", "value", "center_loss_param.center_filler"),),
        backward_inputs=WEIGHED,
        better="smaller",
        bottom_kinds={1: "indices"},
    ),
    "ContrastiveLoss": LayerMetadata(
        fields=("contrastive_loss_param",),
        reference="Caffe",
        backward_inputs=BOTTOMS,
        better="smaller",
        bottom_kinds={2: "marks"},
    ),
    "EuclideanLoss": LayerMetadata(
        op="PairLoss", reference="Caffe", backward_inputs=BOTTOMS, better="smaller"
    ),
    "FocalLoss": LayerMetadata(
        fields=("focal_loss_param", "loss_param", "softmax_param"),
        backward_inputs=BOTTOMS,
        better="smaller",
        contains=("Softmax", "Sigmoid"),
        bottom_kinds={1: "indices"},
    ),
    "HingeLoss": LayerMetadata(
        fields=("hinge_loss_param",),
        reference="Caffe",
        backward_inputs=BOTTOMS,
        better="smaller",
        bottom_kinds={1: "classes"},
    ),
    "InfogainLoss": LayerMetadata(
        fields=("infogain_loss_param", "loss_param"),
        reference="Caffe",
        backward_inputs=BOTTOMS,
        better="smaller",
        contains=("Softmax",),
        bottom_kinds={1: "classes"},
        source="infogain_loss_param.source",
    ),
    "MultinomialLogisticLoss": LayerMetadata(
        reference="Caffe", backward_inputs=BOTTOMS, better="smaller", bottom_kinds={1: "classes"}
    ),
    "SigmoidCrossEntropyLoss": LayerMetadata(
        fields=("loss_param",),
        op="PairLoss",
        reference="Caffe",
        backward_inputs=BOTTOMS,
        better="smaller",
        contains=("Sigmoid",),
    ),
    "MultiBoxLoss": LayerMetadata(
        fields=("multibox_loss_param", "loss_param"),
        backward_inputs=BOTTOMS,
        better="smaller",
        bottom_kinds={2: "priors", 3: "objects"},
    ),
    "SmoothL1Loss": LayerMetadata(
        fields=("smooth_l1_loss_param",), backward_inputs=BOTTOMS, better="smaller"
    ),
    "SmoothL1LossOHEM": LayerMetadata(
        fields=("smooth_l1_loss_param", "loss_param"), backward_inputs=BOTTOMS, better="smaller"
    ),
    "SoftmaxWithLoss": LayerMetadata(
        fields=("loss_param", "softmax_param"),
        op="SoftmaxLoss",
        reference="Caffe",
        backward_inputs={"bottoms": ALWAYS, "second top": SECOND_TOP},
        better="smaller",
        contains=("Softmax",),
        bottom_kinds={1: "classes"},
    ),
    "SoftmaxWithLossOHEM": LayerMetadata(
        fields=("loss_param", "softmax_param"),
        backward_inputs={"bottoms": ALWAYS, "second top": SECOND_TOP},
        better="smaller",
        contains=("Softmax",),
        bottom_kinds={1: "classes"},
    ),
    "TripletLoss": LayerMetadata(
        fields=("triplet_loss_param",), backward_inputs=BOTTOMS, better="smaller"
    ),
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


DATA_LAYERS: Mapping[str, LayerMetadata] = {
    "AnnotatedData": LayerMetadata(
        fields=("annotated_data_param", "data_param", "transform_param"),
        gradient="source",
        host=True,
        source="data_param.source",
        records=True,
    ),
    "Data": LayerMetadata(
        fields=("data_param", "transform_param"),
        gradient="source",
        reference="Caffe",
        host=True,
        source="data_param.source",
        records=True,
    ),
    "DummyData": LayerMetadata(fields=("dummy_data_param",), gradient="source", host=True),
    "HDF5Data": LayerMetadata(
        fields=("hdf5_data_param", "data_param.prefetch"),
        gradient="source",
        reference="Caffe",
        host=True,
        source="hdf5_data_param.source",
        records=True,
    ),
    "HDF5Output": LayerMetadata(
        fields=("hdf5_output_param",), gradient="none", host=True, result=True
    ),
    "ImageData": LayerMetadata(
        fields=("image_data_param", "transform_param", "data_param.prefetch"),
        gradient="source",
        reference="Caffe",
        host=True,
        source="image_data_param.source",
        records=True,
    ),
    "DenseImageData": LayerMetadata(
        fields=("dense_image_data_param", "transform_param", "data_param.prefetch"),
        gradient="source",
        host=True,
        source="dense_image_data_param.source",
        records=True,
    ),
    "ImageSegData": LayerMetadata(
        fields=("image_data_param", "transform_param", "data_param.prefetch"),
        gradient="source",
        host=True,
        source="image_data_param.source",
        records=True,
    ),
    "Input": LayerMetadata(
        fields=("input_param",), gradient="source", reference="Caffe", moves="nothing"
    ),
    "MemoryData": LayerMetadata(
        fields=("memory_data_param", "transform_param"), gradient="source", host=True, records=True
    ),
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
    "WindowData": LayerMetadata(
        fields=("window_data_param", "transform_param", "data_param.prefetch"),
        gradient="source",
        host=True,
        source="window_data_param.source",
        records=True,
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
        fields=("prior_box_param",), op="Fixed", gradient="none", reference="OpenCV", moves="tops"
    ),
    "Proposal": LayerMetadata(fields=("proposal_param",), gradient="none", host=True),
    "PSROIPooling": LayerMetadata(
        fields=("psroi_pooling_param",), op="RegionMeans", bottom_kinds={1: "regions"}
    ),
    "ROIPooling": LayerMetadata(
        fields=("roi_pooling_param",),
        op="RegionPool",
        backward_inputs=BOTTOMS,
        bottom_kinds={1: "regions"},
    ),
}

"""An example of every layer type, as its page shows it; a test builds and runs them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Example:
    """A typical use of a layer.

    Attributes:
        text: Prototxt of the layer, and of others where it needs them.
        inputs: Shapes of the blobs that it reads and does not write.
    """

    text: str
    inputs: Mapping[str, Shape] = field(default_factory=dict)


IMAGES, MAPS, ROWS, LABELS = (8, 3, 32, 32), (8, 16, 8, 8), (8, 10), (8,)


def _layer(name: str, kind: str, blobs: str, *fields: str) -> str:
    """Write a layer: its blobs as "bottom bottom -> top", and further lines."""
    below, _, above = blobs.partition("->")
    bottoms = " ".join(f'bottom: "{blob}"' for blob in below.split())
    tops = " ".join(f'top: "{blob}"' for blob in above.split())
    head = " ".join(part for part in (f'name: "{name}" type: "{kind}"', bottoms, tops) if part)
    if not fields:
        return f"layer {{ {head} }}"
    lines = "\n".join(f"  {line}" for one in fields for line in one.split("\n"))
    return f"layer {{\n  {head}\n{lines}\n}}"


def _neuron(kind: str, *fields: str) -> Example:
    """An element-wise layer in place."""
    name = kind.lower()
    return Example(_layer(name, kind, "conv1 -> conv1", *fields), {"conv1": MAPS})


def _maps(kind: str, top: str, *fields: str) -> Example:
    """A layer of one bottom of maps, which is called like its first top."""
    name = top.split(maxsplit=1)[0]
    return Example(_layer(name, kind, f"conv1 -> {top}", *fields), {"conv1": MAPS})


def _loss(kind: str, *fields: str, labels: Shape = LABELS) -> Example:
    """A loss of scores and labels."""
    blobs = {"scores": ROWS, "label": labels}
    return Example(_layer("loss", kind, "scores label -> loss", *fields), blobs)


XAVIER = 'weight_filler { type: "xavier" }'
SEQUENCE = {"words": (20, 8, 50), "cont": (20, 8)}

EXAMPLES: Mapping[str, Example] = {
    # -- windows and maps
    "Convolution": Example(
        _layer(
            "conv1",
            "Convolution",
            "data -> conv1",
            "param { lr_mult: 1 }",
            "param { lr_mult: 2 }",
            f"convolution_param {{ num_output: 16 kernel_size: 5 stride: 2 pad: 2\n  {XAVIER} }}",
        ),
        {"data": IMAGES},
    ),
    "Deconvolution": Example(
        _layer(
            "upscore",
            "Deconvolution",
            "score -> upscore",
            "param { lr_mult: 0 }",
            "convolution_param { num_output: 16 group: 16 kernel_size: 4 stride: 2 pad: 1\n"
            '  bias_term: false weight_filler { type: "bilinear" } }',
        ),
        {"score": MAPS},
    ),
    "Im2col": Example(
        _layer(
            "columns", "Im2col", "data -> columns", "convolution_param { kernel_size: 3 pad: 1 }"
        ),
        {"data": IMAGES},
    ),
    "Interp": _maps("Interp", "large", "interp_param { height: 32 width: 32 }"),
    "Pooling": _maps("Pooling", "pool1", "pooling_param { pool: MAX kernel_size: 3 stride: 2 }"),
    "Reorg": _maps("Reorg", "reorg", "reorg_param { stride: 2 }"),
    "SPP": _maps("SPP", "pyramid", "spp_param { pyramid_height: 3 pool: MAX }"),
    "Upsample": Example(
        _layer(
            "pool",
            "Pooling",
            "conv1 -> pool mask",
            "pooling_param { pool: MAX kernel_size: 2 stride: 2 }",
        )
        + "\n"
        + _layer("up", "Upsample", "pool mask -> up", "upsample_param { scale: 2 }"),
        {"conv1": MAPS},
    ),
    # -- neurons
    "AbsVal": _maps("AbsVal", "size"),
    "BNLL": _neuron("BNLL"),
    "Clip": _neuron("Clip", "clip_param { min: -1 max: 1 }"),
    "Dropout": Example(
        _layer("drop6", "Dropout", "fc6 -> fc6", "dropout_param { dropout_ratio: 0.5 }"),
        {"fc6": ROWS},
    ),
    "ELU": _neuron("ELU", "elu_param { alpha: 1 }"),
    "Exp": _neuron("Exp"),
    "GELU": _neuron("GELU"),
    "Log": Example(
        _layer("logarithm", "Log", "x -> logarithm", "log_param { shift: 10 }"), {"x": ROWS}
    ),
    "Power": Example(
        _layer("scaled", "Power", "data -> scaled", "power_param { scale: 0.00390625 }"),
        {"data": IMAGES},
    ),
    "PReLU": _neuron("PReLU", "prelu_param { filler { value: 0.25 } }"),
    "ReLU": _neuron("ReLU"),
    "HardSwish": _neuron("HardSwish"),
    "ReLU6": _neuron("ReLU6"),
    "Sigmoid": _neuron("Sigmoid"),
    "Swish": _neuron("Swish"),
    "TanH": _neuron("TanH"),
    "Threshold": Example(
        _layer("positive", "Threshold", "scores -> positive", "threshold_param { threshold: 0 }"),
        {"scores": ROWS},
    ),
    # -- normalisation
    "BatchNorm": Example(
        _layer("bn1", "BatchNorm", "conv1 -> conv1")
        + "\n"
        + _layer("scale1", "Scale", "conv1 -> conv1", "scale_param { bias_term: true }"),
        {"conv1": MAPS},
    ),
    "BN": _neuron(
        "BN", "bn_param { slope_filler { value: 1 } bias_filler { value: 0 } momentum: 0.95 }"
    ),
    "LRN": _maps("LRN", "norm1", "lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }"),
    "MVN": _maps("MVN", "normal"),
    "Normalize": _maps(
        "Normalize",
        "norm",
        "norm_param { across_spatial: false channel_shared: false scale_filler { value: 20 } }",
    ),
    "Softmax": Example(_layer("prob", "Softmax", "scores -> prob"), {"scores": ROWS}),
    # -- products, sums and sequences
    "Axpy": Example(
        _layer("excited", "Axpy", "factors maps shortcut -> excited"),
        {"factors": (8, 16), "maps": MAPS, "shortcut": MAPS},
    ),
    "Bias": _maps("Bias", "shifted", "bias_param { axis: 1 }"),
    "Eltwise": Example(
        _layer("sum", "Eltwise", "branch shortcut -> sum", "eltwise_param { operation: SUM }"),
        {"branch": MAPS, "shortcut": MAPS},
    ),
    "Embed": Example(
        _layer(
            "embedding",
            "Embed",
            "words -> embedding",
            "embed_param { input_dim: 1000 num_output: 50\n"
            '  weight_filler { type: "uniform" min: -0.08 max: 0.08 } }',
        ),
        {"words": (20, 8)},
    ),
    "InnerProduct": Example(
        _layer(
            "fc1",
            "InnerProduct",
            "pool1 -> fc1",
            f"inner_product_param {{ num_output: 10 {XAVIER} }}",
        ),
        {"pool1": MAPS},
    ),
    "LSTM": Example(
        _layer(
            "lstm", "LSTM", "words cont -> lstm", f"recurrent_param {{ num_output: 32 {XAVIER} }}"
        ),
        SEQUENCE,
    ),
    "LSTMUnit": Example(
        _layer("unit", "LSTMUnit", "cell gates cont -> next_cell hidden"),
        {"cell": (1, 8, 32), "gates": (1, 8, 128), "cont": (1, 8)},
    ),
    "Reduction": Example(
        _layer(
            "mean", "Reduction", "scores -> mean", "reduction_param { operation: MEAN axis: 1 }"
        ),
        {"scores": ROWS},
    ),
    "RNN": Example(
        _layer("rnn", "RNN", "words cont -> rnn", f"recurrent_param {{ num_output: 32 {XAVIER} }}"),
        SEQUENCE,
    ),
    "Scale": _neuron("Scale", "scale_param { bias_term: true }"),
    # -- shapes and selections
    "BatchReindex": Example(
        _layer("chosen", "BatchReindex", "features index -> chosen"),
        {"features": ROWS, "index": (4,)},
    ),
    "Concat": Example(
        _layer("both", "Concat", "branch1 branch2 -> both", "concat_param { axis: 1 }"),
        {"branch1": MAPS, "branch2": (8, 4, 8, 8)},
    ),
    "Crop": Example(
        _layer("cut", "Crop", "large small -> cut", "crop_param { axis: 2 offset: 4 }"),
        {"large": (8, 16, 16, 16), "small": MAPS},
    ),
    "Filter": Example(
        _layer("kept", "Filter", "features wanted -> kept"),
        {"features": ROWS, "wanted": LABELS},
    ),
    "Flatten": _maps("Flatten", "rows"),
    "Permute": _maps("Permute", "channels_last", "permute_param { order: [0, 2, 3, 1] }"),
    "Reshape": _maps("Reshape", "rows", "reshape_param { shape { dim: 0 dim: -1 } }"),
    "ShuffleChannel": _maps("ShuffleChannel", "shuffled", "shuffle_channel_param { group: 4 }"),
    "Silence": Example(_layer("quiet", "Silence", "label ->"), {"label": LABELS}),
    "Slice": _maps("Slice", "first second", "slice_param { axis: 1 slice_point: 4 }"),
    "Split": _maps("Split", "one two"),
    "Squeeze": Example(
        _layer("squeezed", "Squeeze", "means -> squeezed", "squeeze_param { axis: [2, 3] }"),
        {"means": (2, 8, 1, 1)},
    ),
    "Tile": _maps("Tile", "tiled", "tile_param { axis: 1 tiles: 2 }"),
    # -- losses
    "CenterLoss": _loss(
        "CenterLoss",
        "loss_weight: 0.01",
        'center_loss_param { num_output: 10 center_filler { type: "xavier" } }',
    ),
    "ContrastiveLoss": Example(
        _layer(
            "loss",
            "ContrastiveLoss",
            "features others same -> loss",
            "contrastive_loss_param { margin: 1 }",
        ),
        {"features": ROWS, "others": ROWS, "same": LABELS},
    ),
    "EuclideanLoss": _loss("EuclideanLoss", labels=ROWS),
    "FocalLoss": _loss("FocalLoss", "focal_loss_param { alpha: 0.25 gamma: 2 }"),
    "HingeLoss": _loss("HingeLoss", "hinge_loss_param { norm: L2 }"),
    "InfogainLoss": Example(
        _layer("loss", "InfogainLoss", "scores label matrix -> loss"),
        {"scores": ROWS, "label": LABELS, "matrix": (1, 1, 10, 10)},
    ),
    "MultinomialLogisticLoss": Example(
        _layer("prob", "Softmax", "scores -> prob")
        + "\n"
        + _layer("loss", "MultinomialLogisticLoss", "prob label -> loss"),
        {"scores": ROWS, "label": LABELS},
    ),
    "SigmoidCrossEntropyLoss": _loss("SigmoidCrossEntropyLoss", labels=ROWS),
    "MultiBoxLoss": Example(
        _layer(
            "loss",
            "MultiBoxLoss",
            "location confidence priors objects -> loss",
            "multibox_loss_param { num_classes: 3 code_type: CENTER_SIZE neg_pos_ratio: 3 }",
        ),
        {
            "location": (2, 24),
            "confidence": (2, 18),
            "priors": (1, 2, 24),
            "objects": (1, 1, 4, 8),
        },
    ),
    "SmoothL1Loss": _loss("SmoothL1Loss", "smooth_l1_loss_param { sigma: 3 }", labels=ROWS),
    "SoftmaxWithLoss": _loss("SoftmaxWithLoss", "loss_param { ignore_label: 255 }"),
    "SmoothL1LossOHEM": Example(
        _layer(
            "loss_bbox",
            "SmoothL1LossOHEM",
            "boxes wanted weights -> loss_bbox losses_bbox",
            "loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 128 }",
        ),
        {"boxes": ROWS, "wanted": ROWS, "weights": ROWS},
    ),
    "SoftmaxWithLossOHEM": Example(
        _layer(
            "loss_cls",
            "SoftmaxWithLossOHEM",
            "scores label -> loss_cls prob losses_cls",
            "loss_weight: 0 loss_weight: 0 loss_weight: 0",
        ),
        {"scores": ROWS, "label": LABELS},
    ),
    "TripletLoss": Example(
        _layer(
            "loss",
            "TripletLoss",
            "anchor positive negative -> loss",
            "triplet_loss_param { margin: 0.2 }",
        ),
        {"anchor": ROWS, "positive": ROWS, "negative": ROWS},
    ),
    # -- metrics
    "Accuracy": Example(
        _layer(
            "top5",
            "Accuracy",
            "scores label -> top5",
            "accuracy_param { top_k: 5 }",
            "include { phase: TEST }",
        ),
        {"scores": ROWS, "label": LABELS},
    ),
    "ArgMax": Example(
        _layer("class", "ArgMax", "scores -> class", "argmax_param { axis: 1 }"),
        {"scores": ROWS},
    ),
    "SegAccuracy": Example(
        _layer(
            "accuracy",
            "SegAccuracy",
            "score label -> accuracy",
            "seg_accuracy_param { ignore_label: 255 }",
            "include { phase: TEST }",
        ),
        {"score": MAPS, "label": (8, 1, 8, 8)},
    ),
    # -- data, inputs and outputs
    "AnnotatedData": Example(
        _layer(
            "data",
            "AnnotatedData",
            "-> data objects",
            "transform_param { mirror: true resize_param { height: 8 width: 8 } }",
            "annotated_data_param { batch_sampler { max_sample: 1 max_trials: 50\n"
            "  sampler { min_scale: 0.5 } sample_constraint { min_jaccard_overlap: 0.5 } } }",
            'data_param { source: "boxes" batch_size: 2 backend: LMDB }',
            "include { phase: TRAIN }",
        )
    ),
    "Data": Example(
        _layer(
            "data",
            "Data",
            "-> data label",
            "transform_param { mirror: true crop_size: 6 mean_value: 128 }",
            'data_param { source: "records" batch_size: 2 backend: LMDB }',
            "include { phase: TRAIN }",
        )
    ),
    "DummyData": Example(
        _layer(
            "noise",
            "DummyData",
            "-> noise",
            'dummy_data_param { shape { dim: 8 dim: 10 } data_filler { type: "gaussian" } }',
        )
    ),
    "HDF5Data": Example(
        _layer(
            "data",
            "HDF5Data",
            "-> data label",
            'hdf5_data_param { source: "list.txt" batch_size: 2 shuffle: true }',
        )
    ),
    "HDF5Output": Example(
        _layer(
            "store",
            "HDF5Output",
            "features label ->",
            'hdf5_output_param { file_name: "features.h5" }',
        ),
        {"features": ROWS, "label": LABELS},
    ),
    "ImageData": Example(
        _layer(
            "data",
            "ImageData",
            "-> data label",
            "transform_param { mirror: true }",
            'image_data_param { source: "list.txt" batch_size: 2 shuffle: true\n'
            "  new_height: 8 new_width: 8 }",
            "include { phase: TRAIN }",
        )
    ),
    "DenseImageData": Example(
        _layer(
            "data",
            "DenseImageData",
            "-> data label",
            'dense_image_data_param { source: "pairs.txt" batch_size: 2 shuffle: true }',
        )
    ),
    "ImageSegData": Example(
        _layer(
            "data",
            "ImageSegData",
            "-> data label",
            'image_data_param { source: "pairs.txt" batch_size: 2 label_type: PIXEL }',
        )
    ),
    "Input": Example(
        _layer(
            "data",
            "Input",
            "-> data",
            "input_param { shape { dim: 1 dim: 3 dim: 32 dim: 32 } }",
        )
    ),
    "MemoryData": Example(
        _layer(
            "data",
            "MemoryData",
            "-> data label",
            "memory_data_param { batch_size: 2 channels: 3 height: 2 width: 2 }",
        )
    ),
    "Parameter": Example(
        _layer("table", "Parameter", "-> table", "parameter_param { shape { dim: 10 dim: 4 } }")
    ),
    "Python": _neuron("Python", 'python_param { module: "my_layers" layer: "Halves" }'),
    "WindowData": Example(
        _layer(
            "data",
            "WindowData",
            "-> data label",
            "transform_param { crop_size: 4 }",
            'window_data_param { source: "windows.txt" batch_size: 4\n'
            "  fg_threshold: 0.5 bg_threshold: 0.5 fg_fraction: 0.25 }",
        )
    ),
    # -- detection
    "BoxAnnotatorOHEM": Example(
        _layer(
            "hard",
            "BoxAnnotatorOHEM",
            "regions losses labels weights -> hard_labels hard_weights",
            "box_annotator_ohem_param { roi_per_img: 2 ignore_label: -1 }",
        ),
        {"regions": (5, 5), "losses": (5, 1), "labels": (5, 1), "weights": (5, 8)},
    ),
    "DetectionEvaluate": Example(
        _layer(
            "detection_eval",
            "DetectionEvaluate",
            "detections objects -> detection_eval",
            "detection_evaluate_param { num_classes: 3 overlap_threshold: 0.5 }",
            "include { phase: TEST }",
        ),
        {"detections": (1, 1, 6, 7), "objects": (1, 1, 4, 8)},
    ),
    "DetectionOutput": Example(
        _layer(
            "detections",
            "DetectionOutput",
            "location confidence priors -> detections",
            "detection_output_param { num_classes: 3 confidence_threshold: 0.01 keep_top_k: 200\n"
            "  nms_param { nms_threshold: 0.45 top_k: 400 } code_type: CENTER_SIZE }",
        ),
        {"location": (2, 24), "confidence": (2, 18), "priors": (1, 2, 24)},
    ),
    "PriorBox": Example(
        _layer(
            "priors",
            "PriorBox",
            "conv4 data -> priors",
            "prior_box_param { min_size: 8 max_size: 16 aspect_ratio: 2 flip: true\n"
            "  variance: [0.1, 0.1, 0.2, 0.2] }",
        ),
        {"conv4": MAPS, "data": IMAGES},
    ),
    "Proposal": Example(
        _layer(
            "regions",
            "Proposal",
            "scores boxes images -> regions",
            "proposal_param { feat_stride: 4 base_size: 4 ratio: 1 scale: 2 scale: 4\n"
            "  min_size: 4 post_nms_topn: 5 }",
        ),
        {"scores": (2, 4, 4, 4), "boxes": (2, 8, 4, 4), "images": (2, 3)},
    ),
    "PSROIPooling": Example(
        _layer(
            "votes",
            "PSROIPooling",
            "maps regions -> votes",
            "psroi_pooling_param { spatial_scale: 0.25 output_dim: 4 group_size: 2 }",
        ),
        {"maps": MAPS, "regions": (5, 5)},
    ),
    "ROIAlign": Example(
        _layer(
            "corners",
            "ROIAlign",
            "maps regions -> corners",
            "roi_pooling_param { pooled_h: 3 pooled_w: 3 spatial_scale: 0.25 }",
        ),
        {"maps": MAPS, "regions": (5, 5)},
    ),
    "BoxGroupOutput": Example(
        _layer(
            "regions",
            "BoxGroupOutput",
            "scores boxes -> regions",
            "box_group_output_param { iou_thr: 0.7 max_post_nms_num: 5 min_size: 4\n"
            "  box_group_param { field_h: 16 field_w: 16 field_h: 24 field_w: 24 stride: 8 } }",
        ),
        {"scores": (2, 3, 4, 4), "boxes": (2, 4, 4, 4)},
    ),
    "DecodeBBox": Example(
        _layer(
            "moved",
            "DecodeBBox",
            "deltas regions -> moved",
            "bbox_reg_param { bbox_mean: [0, 0, 0, 0] bbox_std: [0.1, 0.1, 0.2, 0.2] }",
        ),
        {"deltas": (5, 8), "regions": (5, 5)},
    ),
    "YoloDetectionOutput": Example(
        _layer(
            "found",
            "YoloDetectionOutput",
            "maps -> found",
            "yolo_detection_output_param { num_classes: 3 num_box: 2 confidence_threshold: 0.2\n"
            "  biases: [1.1, 1.2, 3.4, 2.5] }",
        ),
        {"maps": (1, 16, 4, 4)},
    ),
    "Yolov3DetectionOutput": Example(
        _layer(
            "found",
            "Yolov3DetectionOutput",
            "coarse fine -> found",
            "yolov3_detection_output_param { num_classes: 3 num_box: 2 mask_group_num: 2\n"
            "  confidence_threshold: 0.2 biases: [10, 14, 23, 27, 37, 58, 81, 82]\n"
            "  mask: [2, 3, 0, 1] anchors_scale: [32, 16] }",
        ),
        {"coarse": (1, 16, 2, 2), "fine": (1, 16, 4, 4)},
    ),
    "ROIPooling": Example(
        _layer(
            "pooled",
            "ROIPooling",
            "maps regions -> pooled",
            "roi_pooling_param { pooled_h: 3 pooled_w: 3 spatial_scale: 0.25 }",
        ),
        {"maps": MAPS, "regions": (5, 5)},
    ),
}
"""First name of a layer class -> its example."""

"""Small nets built as well-known ones are, old formats included."""

import numpy as np
import pytest
from expect_error import expect_error
from exporting import message, net

from demitasse.errors import ConfigError, ErrorCode


def layer(name, kind, bottoms, tops, fields=""):
    blobs = "".join(f' bottom: "{one}"' for one in bottoms.split())
    blobs += "".join(f' top: "{one}"' for one in tops.split())
    return f'layer {{ name: "{name}" type: "{kind}"{blobs} {fields} }}\n'


def conv(name, bottom, channels, kernel=3, more="pad: 1"):
    fields = f"convolution_param {{ num_output: {channels} kernel_size: {kernel} {more} }}"
    return layer(name, "Convolution", bottom, name, fields)


def relu(blob):
    return layer(f"relu_{blob}", "ReLU", blob, blob)


def images(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


FASTER_RCNN = (
    conv("conv", "data", 8, more="pad: 1 stride: 4")
    + relu("conv")
    + conv("rpn", "conv", 8)
    + relu("rpn")
    + conv("cls", "rpn", 18, 1, "")
    + conv("box", "rpn", 36, 1, "")
    + layer("pairs", "Reshape", "cls", "pairs",
            "reshape_param { shape { dim: 0 dim: 2 dim: -1 dim: 0 } }")
    + layer("prob", "Softmax", "pairs", "prob")
    + layer("back", "Reshape", "prob", "back",
            "reshape_param { shape { dim: 0 dim: 18 dim: -1 dim: 0 } }")
    + layer("proposal", "Python", "back box im_info", "rois",
            """python_param { module: "rpn.proposal_layer" layer: "ProposalLayer"
               param_str: "'feat_stride': 4" }""")
    + layer("pool5", "ROIPooling", "conv rois", "pool5",
            "roi_pooling_param { pooled_h: 3 pooled_w: 3 spatial_scale: 0.25 }")
    + layer("fc6", "InnerProduct", "pool5", "fc6", "inner_product_param { num_output: 10 }")
    + layer("drop6", "Dropout", "fc6", "fc6")
    + layer("cls_score", "InnerProduct", "fc6", "cls_score",
            "inner_product_param { num_output: 3 }")
    + layer("cls_prob", "Softmax", "cls_score", "cls_prob")
)  # fmt: skip


def test_a_detector_with_proposals_in_python(tmp_path, expect_same):
    source = message(FASTER_RCNN, {"data": (1, 3, 64, 96), "im_info": (1, 3)})
    given = {"data": images(1, 3, 64, 96), "im_info": np.array([[64, 96, 1]], np.float32)}

    done = expect_same(source, tmp_path, given)

    assert done.outputs["cls_prob"] == ["proposal_count", 3]
    assert "ProposalLayer of rpn.proposal_layer" in done.notes[0]


SSD = (
    conv("conv", "data", 8, more="pad: 1 stride: 2")
    + relu("conv")
    + layer("norm", "Normalize", "conv", "norm",
            "norm_param { across_spatial: false channel_shared: false scale_filler { value: 9 } }")
    + conv("conv2", "conv", 8, more="pad: 1 stride: 2")
    + "".join(
        conv(f"{blob}_loc", blob, 8) + conv(f"{blob}_conf", blob, 6)
        + "".join(
            layer(f"{blob}_{head}_perm", "Permute", f"{blob}_{head}", f"{blob}_{head}_perm",
                  "permute_param { order: 0 order: 2 order: 3 order: 1 }")
            + layer(f"{blob}_{head}_flat", "Flatten", f"{blob}_{head}_perm",
                    f"{blob}_{head}_flat", "flatten_param { axis: 1 }")
            for head in ("loc", "conf"))
        + layer(f"{blob}_priors", "PriorBox", f"{blob} data", f"{blob}_priors",
                f"""prior_box_param {{ min_size: {size} aspect_ratio: 2 flip: false clip: true
                variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 }}""")
        for blob, size in (("norm", 4), ("conv2", 8)))
    + "".join(
        layer(f"mbox_{head}", "Concat", f"norm_{head}_flat conv2_{head}_flat", f"mbox_{head}",
              "concat_param { axis: 1 }")
        for head in ("loc", "conf"))
    + layer("mbox_priors", "Concat", "norm_priors conv2_priors", "mbox_priors",
            "concat_param { axis: 2 }")
    + layer("rows", "Reshape", "mbox_conf", "rows",
            "reshape_param { shape { dim: 0 dim: -1 dim: 3 } }")
    + layer("prob", "Softmax", "rows", "prob", "softmax_param { axis: 2 }")
    + layer("flat", "Flatten", "prob", "flat", "flatten_param { axis: 1 }")
    + layer("out", "DetectionOutput", "mbox_loc flat mbox_priors", "out",
            """detection_output_param { num_classes: 3 code_type: CENTER_SIZE keep_top_k: 20
            confidence_threshold: 0.2 nms_param { nms_threshold: 0.45 top_k: 50 } }""")
)  # fmt: skip


def small_ssd(batch):
    """A detector whose boxes are about as large as images are."""
    made = net(SSD, {"data": (batch, 3, 16, 16)})
    for blobs in made.params.values():
        blobs[0].mutable_cpu_data()[...] *= 0.1
    return made


@pytest.mark.parametrize("batch", [1, 2])
def test_a_single_shot_detector(batch, tmp_path, expect_same):
    done = expect_same(small_ssd(batch), tmp_path)

    assert done.outputs == {"out": [1, 1, "out_count", 7]}


FCN = (
    conv("conv1", "data", 4, more="pad: 10")
    + layer("pool1", "Pooling", "conv1", "pool1", "pooling_param { kernel_size: 2 stride: 2 }")
    + conv("conv2", "pool1", 6, 7, "")
    + layer("drop", "Dropout", "conv2", "conv2")
    + conv("score", "conv2", 5, 1, "")
    + layer("up2", "Deconvolution", "score", "up2",
            """convolution_param { num_output: 5 kernel_size: 4 stride: 2 bias_term: false
            group: 5 weight_filler { type: "bilinear" } }""")
    + conv("score1", "conv1", 5, 1, "")
    + layer("score1c", "Crop", "score1 up2", "score1c", "crop_param { axis: 2 offset: 3 }")
    + layer("fuse", "Eltwise", "up2 score1c", "fuse")
    + layer("final", "Crop", "fuse data", "final", "crop_param { offset: 1 }")
    + layer("best", "ArgMax", "final", "best", "argmax_param { axis: 1 }")
)  # fmt: skip


def test_a_fully_convolutional_net(tmp_path, expect_same):
    expect_same(net(FCN, {"data": (1, 3, 15, 14)}), tmp_path, outputs=["final"])


SEGNET = (
    conv("conv1", "data", 4)
    + layer("bn1", "BN", "conv1", "conv1", "bn_param { bn_mode: INFERENCE }")
    + relu("conv1")
    + layer("pool1", "Pooling", "conv1", "pool1 mask", "pooling_param { kernel_size: 2 stride: 2 }")
    + conv("conv2", "pool1", 4)
    + layer("up1", "Upsample", "conv2 mask", "up1",
            "upsample_param { scale: 2 upsample_w: 11 upsample_h: 9 }")
    + conv("out", "up1", 3)
)  # fmt: skip


def test_a_net_that_remembers_where_maxima_were(tmp_path, expect_same):
    expect_same(net(SEGNET, {"data": (2, 3, 9, 11)}), tmp_path)


def test_sequences_of_images(tmp_path, expect_same):
    text = (
        layer("fc", "InnerProduct", "data", "fc", "inner_product_param { num_output: 6 }")
        + layer("steps", "Reshape", "fc", "steps",
                "reshape_param { shape { dim: 4 dim: 2 dim: 6 } }")
        + layer("marks", "Reshape", "cont", "marks", "reshape_param { shape { dim: 4 dim: 2 } }")
        + layer("lstm", "LSTM", "steps marks", "lstm", "recurrent_param { num_output: 5 }")
        + layer("classes", "InnerProduct", "lstm", "classes",
                "inner_product_param { num_output: 3 axis: 2 }")
    )  # fmt: skip
    given = {"data": images(8, 3, 4, 4), "cont": np.array([0, 0, 1, 1, 1, 0, 1, 1], np.float32)}

    done = expect_same(net(text, {"data": (8, 3, 4, 4), "cont": (8,)}), tmp_path, given)

    assert "the batch is fixed" in done.notes[-1]
    assert done.outputs == {"classes": [4, 2, 3]}


def test_twins_with_one_set_of_weights(tmp_path, expect_same):
    def twin(tail):
        named = 'param { name: "w%s" } param { name: "b%s" } inner_product_param { num_output: 4 }'
        return (
            layer(f"fc1{tail}", "InnerProduct", f"half{tail}", f"fc1{tail}", named % (1, 1))
            + relu(f"fc1{tail}")
            + layer(f"fc2{tail}", "InnerProduct", f"fc1{tail}", f"fc2{tail}", named % (2, 2))
        )

    halves = layer("slice", "Slice", "pair", "half half_p", "slice_param { slice_dim: 1 }")

    done = expect_same(net(halves + twin("") + twin("_p"), {"pair": (3, 2, 4, 4)}), tmp_path)

    assert list(done.outputs) == ["fc2", "fc2_p"]


V1 = """
name: "old"
input: "data" input_dim: 2 input_dim: 3 input_dim: 8 input_dim: 8
layers { name: "scaled" type: POWER bottom: "data" top: "data" power_param { scale: 0.1 } }
layers { name: "conv" type: CONVOLUTION bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layers { name: "relu" type: RELU bottom: "conv" top: "conv" }
layers { name: "norm" type: LRN bottom: "conv" top: "norm" lrn_param { local_size: 3 } }
layers { name: "pool" type: POOLING bottom: "norm" top: "pool"
  pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 } }
layers { name: "ip" type: INNER_PRODUCT bottom: "pool" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layers { name: "both" type: CONCAT bottom: "ip" bottom: "ip" top: "both"
  concat_param { concat_dim: 1 } }
layers { name: "prob" type: SOFTMAX bottom: "both" top: "prob" }
"""


def test_a_file_of_2014_whose_input_is_overwritten(tmp_path, expect_same):
    file = tmp_path / "old.prototxt"
    file.write_text(V1)

    done = expect_same(file, tmp_path, outputs=["data"])

    assert done.inputs == {"data": ["batch", 3, 8, 8]}
    assert list(done.outputs) == ["prob", "data@scaled"]


def test_a_chain_of_normalisations_in_place(tmp_path, expect_same):
    text = (
        layer("bn0", "BatchNorm", "data", "data")
        + conv("conv", "data", 4)
        + layer("bn1", "BatchNorm", "conv", "bn1")
        + layer("relu1", "ReLU", "bn1", "bn1")
        + layer("scale1", "Scale", "bn1", "bn1", "scale_param { bias_term: true }")
        + layer("bn2", "BatchNorm", "bn1", "bn1")
        + layer("scale2", "Scale", "bn1", "out", "scale_param { axis: 1 num_axes: 1 }")
        + layer("se", "Pooling", "out", "se", "pooling_param { pool: AVE global_pooling: true }")
        + layer("gate", "Flatten", "se", "gate")
        + layer("gated", "Scale", "out gate", "gated", "scale_param { axis: 0 }")
    )

    done = expect_same(net(text, {"data": (2, 3, 6, 6)}), tmp_path)

    assert list(done.outputs) == ["gated"]


def test_a_net_that_is_run_and_reshaped_first(tmp_path, expect_same):
    made = net(FCN, {"data": (1, 3, 15, 14)})
    made.blobs["data"].reshape((1, 3, 20, 18))
    made.forward()

    done = expect_same(made, tmp_path)

    assert done.inputs == {"data": ["batch", 3, 20, 18]}


def test_the_same_file_is_written_twice(tmp_path, expect_same):
    made = small_ssd(1)

    one = expect_same(made, tmp_path).files[0].read_bytes()
    two = expect_same(made, tmp_path).files[0].read_bytes()

    assert one == two


def test_a_comparison_needs_an_array_for_each_input(tmp_path, expect_same):
    done = expect_same(net(conv("conv", "data", 4), {"data": (1, 3, 6, 6)}), tmp_path)

    with expect_error(ConfigError, ErrorCode.MISSING, field="inputs", expected=["data"]):
        done.compare({})


def test_a_batch_may_be_a_number_of_numpy(tmp_path, expect_same):
    made = net(conv("conv", "data", 4), {"data": (1, 3, 6, 6)})

    done = expect_same(made, tmp_path, batch=np.int64(4))

    assert done.inputs == {"data": [4, 3, 6, 6]}

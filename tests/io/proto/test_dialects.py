"""Fields and layer types of other Caffes: named, left out or read as Caffe's own."""

import pytest
from expect_error import expect_error

from demitasse.errors import ErrorCode, PrototxtError
from demitasse.io.proto import (
    LayerParameter,
    NetParameter,
    PoolingParameter,
    SolverParameter,
    caffe_pb2,
    fork_of_type,
    parse_text,
    text_of,
)
from demitasse.io.proto.text import dialects, parse
from demitasse.io.proto.text.schema import schema


def test_a_field_that_matters_is_refused_and_its_fork_named():
    text = 'layer {\n type: "Yolov3"\n yolov3_param { num_class: 2 }\n}'

    with expect_error(PrototxtError, ErrorCode.UNSUPPORTED, mentions=["3:2", "yolov3_param"]):
        parse_text(text, NetParameter)


def test_statistics_of_parts_of_a_batch_are_refused_for_a_net_as_for_a_layer():
    for text in ("bn_stats_batch_size: 32", "layer { batch_norm_param { stats_batch_size: 32 } }"):
        with expect_error(PrototxtError, ErrorCode.UNSUPPORTED, mentions="intel/caffe"):
            parse_text(text, NetParameter)


def test_a_field_of_a_fork_that_is_implemented_is_read():
    parsed = parse("prior_box_param { min_size: 30 }", LayerParameter)

    assert list(parsed.message.prior_box_param.min_size) == [30]
    assert not parsed.warnings


@pytest.mark.parametrize(
    "text",
    [
        "video_data_param { video_type: VIDEO video_file: 'a.mp4' }",
        "video_data_param { source: 'list' batch_size: 8 new_length: 10 modality: RGB }",
        "multi_stage_meanfield_param { num_iterations: 5 compatibility_mode: POTTS theta_beta: 3 }",
        "roi_warping_param { pooled_h: 7 pooled_w: 7 spatial_scale: 0.0625 }",
        "transpose_param { dim: 2 dim: 0 dim: 1 }",
    ],
)
def test_a_message_that_only_a_layer_of_a_fork_reads_is_kept(text):
    parsed = parse(text, LayerParameter)

    assert not parsed.warnings
    assert parse(text_of(parsed.message), LayerParameter).message == parsed.message


def test_a_single_fork_is_named_with_its_address():
    with expect_error(PrototxtError, ErrorCode.UNSUPPORTED, mentions="NVIDIA/caffe"):
        parse_text("larc: true", SolverParameter)


def test_a_field_that_matters_can_be_left_out_on_request():
    parsed = parse("seg_data_param { } name: 'a'", LayerParameter, ignore_unknown_fields=True)

    assert parsed.message == LayerParameter(name="a")
    assert "PSPNet" in parsed.warnings[0].message


def test_a_scale_of_gradients_that_nvcaffe_takes_back_is_left_out():
    parsed = parse("name: 'a' global_grad_scale: 1000", NetParameter)

    assert parsed.message == NetParameter(name="a")
    assert len(parsed.warnings) == 1


def test_a_harmless_field_is_left_out_with_a_warning():
    parsed = parse("source: 'a' cache: true threads: 4", caffe_pb2.DataParameter)

    assert parsed.message == caffe_pb2.DataParameter(source="a")
    assert [warning.message.partition(" ")[0] for warning in parsed.warnings] == [
        "cache",
        "threads",
    ]
    assert all("NVCaffe (NVIDIA/caffe)" in warning.message for warning in parsed.warnings)


@pytest.mark.parametrize(("written", "read"), [("true", "CEIL"), ("false", "FLOOR")])
def test_ceil_mode_is_read_as_round_mode(written, read):
    parsed = parse(f"ceil_mode: {written}", PoolingParameter)

    assert PoolingParameter.RoundMode.Name(parsed.message.round_mode) == read
    assert f"round_mode: {read}" in parsed.warnings[0].message


def test_hole_is_read_as_dilation():
    assert list(parse_text("hole: 4", caffe_pb2.ConvolutionParameter).dilation) == [4]


@pytest.mark.parametrize("text", ["ceil_mode: maybe", "ceil_mode: [true]", "ceil_mode { }"])
def test_another_name_with_a_value_that_cannot_be_is_refused(text):
    with expect_error(PrototxtError, ErrorCode.UNSUPPORTED, mentions="ceil_mode"):
        parse_text(text, PoolingParameter)


@pytest.mark.parametrize(
    ("name", "fork"),
    [
        ("VIDEO_DATA", "C3D"),
        ("DENSE_CRF", "DeepLab"),
        ("UNPOOLING", "DeconvNet"),
        ("WINDOW_INST_SEG_DATA", "DeconvNet"),
    ],
)
def test_types_of_the_old_format_are_named(name, fork):
    with expect_error(PrototxtError, ErrorCode.UNSUPPORTED, mentions=[name, fork]):
        parse_text(f"layers {{ type: {name} }}", NetParameter)


@pytest.mark.parametrize(
    ("field", "fork"),
    [
        ("lstm_param", "caffe-lstm and CTPN"),
        ("eval_data_param", "Cascade R-CNN"),
        ("extended_image_data_param", "autocolorize"),
        ("cos_data_param", "CaffeOnSpark"),
        ("trt_param", "NVCaffe"),
        ("normalize_param", "happynear"),
    ],
)
def test_a_message_of_a_fork_is_named_where_another_name_looks_alike(field, fork):
    with expect_error(PrototxtError, ErrorCode.UNSUPPORTED, mentions=[field, fork]):
        parse_text(f"{field} {{ }}", LayerParameter)


@pytest.mark.parametrize(
    ("text", "fork"),
    [
        ("prior_box_param { fixed_size: 32 density: 4 }", "FaceBoxes"),
        ("prior_box_param { yx_order: true }", "Synopsys Caffe"),
        ("detection_output_param { no_permute: true }", "Synopsys Caffe"),
        ("detection_output_param { objectness_score: 0.01 }", "DeepDetect and RefineDet"),
        ("multibox_loss_param { objectness_score: 0.01 }", "DeepDetect and RefineDet"),
        ("batch_norm_param { add_eps_before_sqrt: true }", "Synopsys Caffe"),
        ("bn_param { icnet: true }", "Synopsys Caffe"),
        ("reshape_param { pixelshuffler: 2 }", "Synopsys Caffe"),
    ],
)
def test_a_field_of_a_fork_in_a_message_that_is_known_is_named(text, fork):
    with expect_error(PrototxtError, ErrorCode.UNSUPPORTED, mentions=fork):
        parse_text(text, LayerParameter)


def test_the_parameters_of_unpooling_are_named():
    text = "layers { type: POOLING } layers { unpooling_param { unpool: MAX unpool_size: 14 } }"

    with expect_error(PrototxtError, ErrorCode.UNSUPPORTED, mentions="HyeonwooNoh/caffe"):
        parse_text(text, NetParameter)


def test_layer_types_of_forks_are_known():
    assert fork_of_type("MultiStageMeanfield").startswith("CRF-RNN")
    assert fork_of_type("SpatialDropout").startswith("Intel Caffe")
    assert fork_of_type("Lstm").startswith("caffe-lstm")
    assert fork_of_type("ProposalTarget").startswith("Cascade R-CNN")
    assert fork_of_type("CtcLoss").startswith("DeepDetect")
    assert "MobileNet-YOLO" in fork_of_type("RegionLoss")
    assert fork_of_type("Unpooling").startswith("DeconvNet")
    assert fork_of_type("Convolution") == ""
    assert fork_of_type("NoSuchLayer") == ""


def test_the_table_speaks_of_messages_that_exist_and_fields_that_do_not():
    for key, entry in dialects._entries().items():
        message, field = key.split(".")
        known = schema(getattr(caffe_pb2, message).DESCRIPTOR).fields
        assert field not in known, key
        assert entry.forks, key
        assert not entry.target or entry.target in known, key


def test_the_table_has_no_layer_type_that_is_implemented():
    from demitasse.layers.registry import CATALOG

    named = {name for names in dialects._table()["types"].values() for name in names.split()}

    assert not named & set(CATALOG)


def test_every_fork_of_the_table_has_a_name():
    table = dialects._table()
    used = {*table["types"], *table["v1_types"], *table["fields"], *table["harmless"]}

    assert used | {same["fork"] for same in table["same"].values()} == set(table["forks"])


def test_recorded_files_of_forks_have_no_field_that_nobody_knows(reference_data):
    import json

    for entry in json.loads((reference_data / "prototxt_index.json").read_text()):
        if not entry["bvlc_parse"] and entry["kind"] == "net":
            text = (reference_data / entry["file"]).read_bytes().decode("utf-8", "surrogateescape")
            try:
                parse(text, NetParameter)
            except PrototxtError as error:
                assert error.code != ErrorCode.UNKNOWN, entry["file"]  # noqa: PT017


@pytest.mark.parametrize("text", ["kernel_size: 1 kernel_size: 2 kernel_size: 3",
                                  "kernel_size: [1, 2, 3]",
                                  "kernel_size: 1 kernel_size: [2, 3]"])  # fmt: skip
def test_a_field_of_pooling_with_several_values_has_one_for_each_axis(text):
    parsed = parse(text, PoolingParameter)

    assert parsed.message == PoolingParameter(kernel_size_3d=[1, 2, 3])
    assert [warning.kind for warning in parsed.warnings] == ["foreign-field"]


def test_other_fields_with_two_values_are_refused():
    with expect_error(PrototxtError, ErrorCode.UNREADABLE, mentions="two"):
        parse_text("pool: MAX pool: AVE", PoolingParameter)


def test_a_message_under_another_name_is_read():
    text = "filler { value: 2 } bias_filler { value: 3 }"

    parsed = parse(text, caffe_pb2.BatchNormParameter)

    assert parsed.message.scale_filler.value == 2
    assert parsed.message.bias_filler.value == 3
    [warning] = parsed.warnings
    assert "Intel Caffe" in warning.message


def test_a_message_under_both_names_is_refused():
    with expect_error(PrototxtError, ErrorCode.UNREADABLE, mentions="two"):
        parse_text("scale_filler { } filler { }", caffe_pb2.BatchNormParameter)


def test_an_enum_value_under_another_name_is_read():
    parsed = parse("pool: AVE_TF", PoolingParameter)

    assert parsed.message == PoolingParameter(pool=PoolingParameter.AVE_EXC_PAD)
    assert "AVE_EXC_PAD" in parsed.warnings[0].message

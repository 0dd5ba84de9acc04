"""Old files become what Caffe makes of them."""

import numpy as np
import pytest
from expect_error import expect_error
from google.protobuf import text_format

from demitasse.errors import ErrorCode, PrototxtError
from demitasse.io.proto import (
    NetParameter,
    SolverParameter,
    floats,
    parse_text,
    set_floats,
    text_of,
    upgrade_net,
    upgrade_solver,
)
from demitasse.io.proto.upgrade_layers import MOVES, V0_TYPES, V1_TYPES, Problem


def upgraded(text):
    """The upgraded net as text, and the notes."""
    net = parse_text(text, NetParameter)
    notes = upgrade_net(net)
    return net, notes


def same(net, text):
    return net == parse_text(text, NetParameter)


def test_every_recorded_net_and_solver_becomes_what_caffe_made_of_it(reference_data):
    gold = reference_data / "prototxt_gold"
    equal = 0
    for path in sorted(gold.rglob("*.upgraded")):
        source = reference_data / "prototxt" / path.relative_to(gold).with_suffix("")
        cls, upgrade = NetParameter, upgrade_net
        if "solver" in source.name:
            cls, upgrade = SolverParameter, upgrade_solver
        message = parse_text(source.read_bytes().decode("utf-8", "surrogateescape"), cls)

        upgrade(message)

        assert message == text_format.Parse(path.read_text(), cls()), source
        equal += 1
    assert equal == 115


def test_a_current_net_stays_as_it_is():
    text = 'name: "a" layer { name: "b" type: "ReLU" bottom: "x" top: "x" }'

    net, notes = upgraded(text)

    assert same(net, text)
    assert notes == []


# -- V0 ------------------------------------------------------------------------------------------


def test_the_oldest_format_goes_all_the_way():
    net, notes = upgraded(
        """
        name: "old" input: "data" input_dim: [1, 4, 8, 8]
        layers {
          layer { name: "conv" type: "conv" num_output: 4 kernelsize: 3 stride: 2 group: 2 pad: 1
                  biasterm: false weight_filler { type: "xavier" } blobs_lr: 1 blobs_lr: 2
                  weight_decay: 1 weight_decay: 0 }
          bottom: "data" top: "conv"
        }
        layers { layer { name: "drop" type: "dropout" dropout_ratio: 0.25 }
                 bottom: "conv" top: "conv" }
        """
    )

    assert same(
        net,
        """
        name: "old"
        layer { name: "input" type: "Input" top: "data"
                input_param { shape { dim: [1, 4, 8, 8] } } }
        layer {
          name: "conv" type: "Convolution" bottom: "data" top: "conv"
          param { lr_mult: 1 decay_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
          convolution_param { num_output: 4 kernel_size: 3 stride: 2 group: 2 pad: 1
                              bias_term: false weight_filler { type: "xavier" } }
        }
        layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv"
                dropout_param { dropout_ratio: 0.25 } }
        """,
    )
    assert not any(isinstance(note, Problem) for note in notes)


def test_padding_layers_are_folded_into_their_readers():
    net, notes = upgraded(
        """
        input: "data" input_dim: 1 input_dim: 3 input_dim: 8 input_dim: 8
        layers { layer { name: "pad" type: "padding" pad: 2 } bottom: "data" top: "pad" }
        layers { layer { name: "conv" type: "conv" } bottom: "pad" top: "conv" }
        layers { layer { name: "pool" type: "pool" pool: STOCHASTIC } bottom: "pad" top: "pool" }
        """
    )

    assert [layer.name for layer in net.layer] == ["input", "conv", "pool"]
    assert [list(layer.bottom) for layer in net.layer[1:]] == [["data"], ["data"]]
    assert list(net.layer[1].convolution_param.pad) == [2]
    assert (net.layer[2].pooling_param.pad, net.layer[2].pooling_param.pool) == (2, 2)
    assert "1 padding layers became the pad of the layers after them" in notes


@pytest.mark.parametrize(
    ("text", "code", "mentions"),
    [
        (
            "layers { layer { name: 'a' type: 'relu' } bottom: 'x' }",
            "unknown",
            ["'a'", "'x'"],
        ),
        (
            "input: 'x' layers { layer { name: 'p' type: 'padding' } bottom: 'x' top: 'p' }"
            "layers { layer { name: 'a' type: 'relu' } bottom: 'p' }",
            "unsupported",
            ["'a'", "'p'", "'conv'", "'pool'"],
        ),
        (
            "input: 'x' layers { layer { name: 'p' type: 'padding' } bottom: 'x' top: 'p' }"
            "layers { layer { name: 'a' type: 'conv' } bottom: 'p' bottom: 'x' }",
            "count-mismatch",
            ["'a'", "2"],
        ),
        ("layers { layer { name: 'a' type: 'cnv' } }", "unknown", ["'cnv'", "'conv'"]),
        ("layers { layer { type: 'x' } }", "unknown", "'x'"),
    ],
)
def test_what_caffe_cannot_upgrade_is_refused(text, code, mentions):
    with expect_error(PrototxtError, code, mentions=mentions):
        upgraded(text)


def test_a_field_that_its_type_does_not_have_is_left_out_and_named():
    net, notes = upgraded("layers { layer { name: 'a' type: 'relu' num_output: 3 scale: 2 } }")

    assert same(net, "layer { name: 'a' type: 'ReLU' transform_param { scale: 2 } }")
    assert [note for note in notes if isinstance(note, Problem)] == [
        "layer 'a': a 'relu' layer has no num_output"
    ]


def test_fields_younger_than_the_oldest_format_are_left_out_and_named():
    net, notes = upgraded("debug_info: true layers { name: 'b' layer { name: 'a' type: 'tanh' } }")

    assert same(net, "layer { name: 'a' type: 'TanH' }")
    first, second = [note for note in notes if isinstance(note, Problem)]
    assert "'a'" in first
    assert "debug_info" in second


def test_an_hdf5_output_keeps_its_message():
    net, _ = upgraded(
        "layers { layer { type: 'hdf5_output' hdf5_output_param { file_name: 'f' } } }"
    )

    assert same(net, "layer { type: 'HDF5Output' hdf5_output_param { file_name: 'f' } }")


def test_every_field_of_the_oldest_format_has_a_place():
    fields = {field.name for field in NetParameter().layers.add().layer.DESCRIPTOR.fields}
    kept = {"name", "type", "blobs", "blobs_lr", "weight_decay"}
    never_read = {"new_num", "new_channels"}  # of a Reshape that was not in any release

    assert fields - kept - never_read == set(MOVES)


# -- V1 ------------------------------------------------------------------------------------------


def test_v1_layers_become_current_ones():
    net, _ = upgraded(
        """
        layers {
          name: "ip" type: INNER_PRODUCT bottom: "x" top: "y" loss_weight: 0.5
          param: "w" param: "b" blob_share_mode: PERMISSIVE blobs_lr: 1 blobs_lr: 2
          weight_decay: 1 weight_decay: 0
          include { phase: TRAIN } exclude { min_level: 1 } exclude { stage: "s" }
          inner_product_param { num_output: 3 }
        }
        """
    )

    assert same(
        net,
        """
        layer {
          name: "ip" type: "InnerProduct" bottom: "x" top: "y" loss_weight: 0.5
          param { name: "w" share_mode: PERMISSIVE lr_mult: 1 decay_mult: 1 }
          param { name: "b" lr_mult: 2 decay_mult: 0 }
          include { phase: TRAIN } exclude { min_level: 1 } exclude { stage: "s" }
          inner_product_param { num_output: 3 }
        }
        """,
    )


def test_every_v1_type_has_a_name_and_every_v0_type_a_v1_type():
    enum = NetParameter().layers.add().LayerType

    assert set(V1_TYPES) == set(enum.values())
    assert set(V0_TYPES.values()) <= set(V1_TYPES)
    assert V1_TYPES[enum.Value("SOFTMAX_LOSS")] == "SoftmaxWithLoss"


def test_every_message_of_a_v1_layer_is_carried_over():
    net = NetParameter()
    old = net.layers.add()
    names = [field.name for field in old.DESCRIPTOR.fields if field.name.endswith("_param")]
    for name in names:
        getattr(old, name).SetInParent()

    upgrade_net(net)

    assert [field.name for field, _ in net.layer[0].ListFields()] == sorted(
        names, key=lambda name: net.layer[0].DESCRIPTOR.fields_by_name[name].number
    )


@pytest.mark.parametrize("old", ["type: RELU", "layer { name: 'a' type: 'relu' }"])
def test_old_and_new_layers_together_are_refused(old):
    with expect_error(PrototxtError, "conflict", mentions=["1 'layers'", "2 of 'layer'"]):
        upgraded(f"layer {{ name: 'b' }} layers {{ {old} }} layer {{ name: 'c' }}")


def test_parameters_are_carried_over():
    values = np.arange(6, dtype=np.float32)
    net = NetParameter()
    for layer in (net.layers.add(name="v1", type=14), net.layers.add().layer):
        set_floats(layer.blobs.add(num=1, channels=1, height=2, width=3), values)
    net.layers[1].layer.type = "innerproduct"

    upgrade_net(net)

    for layer in net.layer:
        np.testing.assert_array_equal(floats(layer.blobs[0]), values)


# -- data, inputs, batch norm --------------------------------------------------------------------


def test_transformations_of_old_data_layers_move():
    net, notes = upgraded(
        """
        layers { type: DATA data_param { source: "a" scale: 0.5 mean_file: "m" crop_size: 3
                                         mirror: true } }
        layers { type: IMAGE_DATA image_data_param { source: "b" } }
        layers { type: WINDOW_DATA }
        layers { type: HDF5_DATA }
        """
    )

    assert same(
        net,
        """
        layer { type: "Data" data_param { source: "a" }
                transform_param { scale: 0.5 mean_file: "m" crop_size: 3 mirror: true } }
        layer { type: "ImageData" image_data_param { source: "b" } transform_param { } }
        layer { type: "WindowData" window_data_param { } transform_param { } }
        layer { type: "HDF5Data" }
        """,
    )
    assert "scale, mean_file, crop_size and mirror moved to transform_param" in notes


def test_data_layers_that_need_nothing_get_nothing():
    net, _ = upgraded("layers { type: DATA data_param { source: 'a' } }")

    assert same(net, "layer { type: 'Data' data_param { source: 'a' } }")


def test_transformations_of_a_current_data_layer_stay():
    text = "layer { type: 'Data' data_param { scale: 0.5 } }"

    assert same(upgraded(text)[0], text)


def test_inputs_become_the_first_layer():
    net, _ = upgraded(
        """
        input: "a" input_shape { dim: 1 dim: 2 } input: "b" input_shape { dim: 3 }
        layer { name: "x" }
        """
    )

    assert same(
        net,
        """
        layer { name: "input" type: "Input" top: "a" top: "b"
                input_param { shape { dim: 1 dim: 2 } shape { dim: 3 } } }
        layer { name: "x" }
        """,
    )


def test_inputs_may_have_four_dimensions_each():
    net, _ = upgraded("input: 'a' input: 'b' " + " ".join(f"input_dim: {i}" for i in range(8)))

    shapes = [list(shape.dim) for shape in net.layer[0].input_param.shape]
    assert shapes == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_inputs_without_shapes_are_left_out_and_named():
    net, notes = upgraded("input: 'a' layer { name: 'x' }")

    assert same(net, "layer { name: 'x' }")
    (note,) = notes
    assert isinstance(note, Problem)
    assert note.endswith(": a")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("input: 'a' input: 'b' input_shape { dim: 1 }", "input_shape"),
        ("input: 'a' input_dim: 1", "input_dim"),
    ],
)
def test_too_few_shapes_are_refused(text, field):
    with expect_error(PrototxtError, ErrorCode.COUNT_MISMATCH, field=field):
        upgraded(text)


def test_batch_norm_with_three_specs_is_not_trained():
    specs = "param { lr_mult: 1 name: 'm' } param { decay_mult: 2 } param { }"

    net, notes = upgraded(
        f"layer {{ type: 'BatchNorm' {specs} }} layer {{ type: 'Scale' {specs} }}"
    )

    assert same(
        net,
        f"""
        layer {{ type: 'BatchNorm' param {{ lr_mult: 0 decay_mult: 0 name: 'm' }}
                param {{ lr_mult: 0 decay_mult: 0 }} param {{ lr_mult: 0 decay_mult: 0 }} }}
        layer {{ type: 'Scale' {specs} }}
        """,
    )
    assert notes == ["BatchNorm with three param entries: their lr_mult and decay_mult are 0 (1)"]


# -- solvers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SGD", "SGD"),
        ("NESTEROV", "Nesterov"),
        ("ADAGRAD", "AdaGrad"),
        ("RMSPROP", "RMSProp"),
        ("ADADELTA", "AdaDelta"),
        ("ADAM", "Adam"),
    ],
)
def test_solver_types_become_names(old, new):
    solver = parse_text(f"solver_type: {old}", SolverParameter)

    notes = upgrade_solver(solver)

    assert text_of(solver) == f'type: "{new}"\n'
    assert notes == [f"solver_type: {old} was read as type: '{new}'"]


def test_a_current_solver_stays_as_it_is():
    solver = SolverParameter(type="Adam")

    assert upgrade_solver(solver) == []
    assert solver == SolverParameter(type="Adam")


# -- V1 spellings of later types, and of forks ----------------------------------------------------


def test_every_type_and_its_message_has_a_v1_spelling():
    from demitasse.io.proto import LayerParameter, V1LayerParameter
    from demitasse.layers.registry import CATALOG

    assert {*CATALOG} - {*V1_TYPES.values()} == set()
    for field in LayerParameter.DESCRIPTOR.fields:
        old = V1LayerParameter.DESCRIPTOR.fields_by_name.get(field.name)
        if field.name.endswith("_param"):
            assert old is not None, field.name
            assert old.message_type is field.message_type


@pytest.mark.parametrize(
    ("text", "current"),
    [
        (
            "type: INTERP interp_param { shrink_factor: 8 }",
            "type: 'Interp' interp_param { shrink_factor: 8 }",
        ),
        (
            "type: SEG_ACCURACY seg_accuracy_param { ignore_label: 255 }",
            "type: 'SegAccuracy' seg_accuracy_param { ignore_label: 255 }",
        ),
        (
            "type: IMAGE_SEG_DATA image_data_param { label_type: PIXEL }",
            "type: 'ImageSegData' image_data_param { label_type: PIXEL }",
        ),
        ("type: BN bn_param { bn_mode: INFERENCE }", "type: 'BN' bn_param { bn_mode: INFERENCE }"),
        (
            "type: ROI_POOLING roi_pooling_param { pooled_h: 7 }",
            "type: 'ROIPooling' roi_pooling_param { pooled_h: 7 }",
        ),
        (
            "type: CONVOLUTION3D blobs_lr: 2 convolution_param { kernel_depth: 3 temporal_pad: 1 }",
            "type: 'Convolution' param { lr_mult: 2 } "
            "convolution_param { kernel_depth: 3 temporal_pad: 1 }",
        ),
        (
            "type: POOLING3D pooling_param { kernel_depth: 1 temporal_stride: 1 }",
            "type: 'Pooling' pooling_param { kernel_depth: 1 temporal_stride: 1 }",
        ),
        (
            "type: SOFTMAX_LOSS softmaxloss_param { ignore_label: 255 }",
            "type: 'SoftmaxWithLoss' loss_param { ignore_label: 255 }",
        ),
        (
            "type: CONVOLUTION strict_dim: false convolution_param { hole_h: 2 hole_w: 3 }",
            "type: 'Convolution' convolution_param { dilation_h: 2 dilation_w: 3 }",
        ),
    ],
)
def test_old_entries_of_forks_become_current_layers(text, current):
    net, _ = upgraded(f"layers {{ name: 'a' {text} }}")

    assert same(net, f"layer {{ name: 'a' {current} }}")


@pytest.mark.parametrize(
    ("text", "current"),
    [
        (
            "type: 'Convolution3D' convolution3d_param { kernel_size: 3 kernel_depth: 2 }",
            "type: 'Convolution' convolution_param { kernel_size: 3 kernel_depth: 2 }",
        ),
        (
            "type: 'Convolution3D' convolution3d_param { temporal_pad: 1 filter_group: 2 }",
            "type: 'Convolution' convolution_param { temporal_pad: 1 }",
        ),
        (
            "type: 'Pooling3D' pooling3d_param { kernel_h: 3 kernel_w: 2 kernel_l: 4 pad_l: 1 }",
            "type: 'Pooling' "
            "pooling_param { kernel_h: 3 kernel_w: 2 kernel_depth: 4 temporal_pad: 1 }",
        ),
        (
            "type: 'Pooling3D' pooling3d_param { pool: AVE stride: 2 stride_l: 3 pad: 1 }",
            "type: 'Pooling' pooling_param { pool: AVE stride: 2 temporal_stride: 3 pad: 1 }",
        ),
        (
            "type: 'Pooling' pooling_param { pad_l: 1 }",
            "type: 'Pooling' pooling_param { pad_l: 1 }",
        ),
    ],
)
def test_volumes_of_c3d_and_p3d_have_windows_of_three_axes(text, current):
    net, _ = upgraded(f"layer {{ name: 'a' {text} }}")

    assert same(net, f"layer {{ name: 'a' {current} }}")


@pytest.mark.parametrize(
    "fields", ["ignore_label: 0 ignore_label: 255", "weight_source: 'weights.txt'"]
)
def test_a_softmax_loss_of_deeplab_that_caffe_does_not_have_is_refused(fields):
    with expect_error(PrototxtError, ErrorCode.UNSUPPORTED, mentions="softmaxloss_param"):
        upgraded(f"layers {{ name: 'a' type: SOFTMAX_LOSS softmaxloss_param {{ {fields} }} }}")


def fcn(stages, last):
    """An old-format net of convolutions and poolings, as FCN has them, without its last layers."""
    entry = "layers {{ name: '{0}' type: {1} bottom: '{2}' top: '{0}' {3} }}"
    lines, below = [], "data"
    for i in range(stages):
        pad = 1 if i else 100
        lines += [
            entry.format(f"c{i}", "CONVOLUTION", below,
                         f"convolution_param {{ kernel_size: 3 pad: {pad} }}"),
            f"layers {{ name: 'r{i}' type: RELU bottom: 'c{i}' top: 'c{i}' }}",
            entry.format(f"p{i}", "POOLING", f"c{i}", "pooling_param { kernel_size: 2 stride: 2 }"),
        ]  # fmt: skip
        below = f"p{i}"
    lines.append(entry.format("fc", "CONVOLUTION", below, "convolution_param { kernel_size: 7 }"))
    return "\n".join(["input: 'data' input_dim: [1, 3, 64, 64]", *lines, last])


def test_a_crop_of_fcns_first_release_aligns_its_bottoms():
    last = """
        layers { name: 'up' type: DECONVOLUTION bottom: 'fc' top: 'up'
                 convolution_param { kernel_size: 64 stride: 32 } }
        layers { name: 'score' type: CROP bottom: 'up' bottom: 'data' top: 'score' }
    """

    net, notes = upgraded(fcn(5, last))

    assert list(net.layer[-1].crop_param.offset) == [19, 19]  # as in FCN-32s
    assert any("19, 19" in note for note in notes)


def test_a_crop_with_an_offset_keeps_it():
    last = "layers { name: 'c' type: CROP bottom: 'fc' bottom: 'data' crop_param { offset: 3 } }"

    net, _ = upgraded(fcn(1, last))

    assert list(net.layer[-1].crop_param.offset) == [3]


@pytest.mark.parametrize("reference", ["p0", "other"])
def test_a_crop_between_blobs_without_common_coordinates_begins_at_0(reference):
    last = f"layers {{ name: 'c' type: CROP bottom: 'c0' bottom: '{reference}' top: 'c' }}"

    net, notes = upgraded(fcn(1, last))

    assert not net.layer[-1].HasField("crop_param")
    assert any(isinstance(note, Problem) and "offset is 0" in note for note in notes)

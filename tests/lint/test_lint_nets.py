"""What lint finds in nets, one test for each rule, and that it is quiet about sound ones."""

import re

import numpy as np
import pytest

from demitasse import Net
from demitasse.errors import DemitasseError
from demitasse.io.data.databases.writing import write_database
from demitasse.io.proto import BlobProto, NetParameter, parse_text, set_floats, write_binary
from demitasse.layers import Layer, register_layer, unregister
from demitasse.layers.metadata import ALWAYS, LayerMetadata, ParamMetadata
from demitasse.lint import Finding, lint

DATA = """layer { name: "data" type: "Data" top: "x" top: "y"
  data_param { source: "db" backend: LMDB batch_size: 2 } TRANSFORM }
"""
IP = """layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
"""
STILL = IP.replace("inner_product_param", 2 * "param { lr_mult: 0 } " + "inner_product_param")
LOSS = """layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "y" top: "loss" }
"""


@pytest.fixture
def found(tmp_path):
    """Write a net beside a database of 8 x 8 images with labels 0 to 2, and lint it."""
    images = [(np.zeros((3, 8, 8), np.uint8), i % 3) for i in range(5)]
    write_database(tmp_path / "db", images)

    def run(text, **files):
        for name, content in files.items():
            (tmp_path / name.replace("_", ".")).write_text(content)
        (tmp_path / "net.prototxt").write_text(text)
        return lint(tmp_path / "net.prototxt")

    return run


def codes(findings):
    return [(finding.severity, finding.code) for finding in findings]


def the(findings, code):
    [one] = [finding for finding in findings if finding.code == code]
    return one


def test_a_sound_net_gives_nothing(found):
    accuracy = """layer { name: "a" type: "Accuracy" bottom: "ip" bottom: "y" top: "a"
      include { phase: TEST } }"""

    assert found(DATA.replace("TRANSFORM", "") + IP + LOSS + accuracy) == []


def test_a_deploy_net_gives_nothing(found):
    net = """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 4 } } }"""

    assert found(net + IP + 'layer { name: "p" type: "Softmax" bottom: "ip" top: "p" }') == []


def test_a_finding_says_where_and_what(found, tmp_path):
    one = the(found(DATA.replace("TRANSFORM", "") + IP.replace('"xavier"', '"constant"')
                    + LOSS.replace("SoftmaxWithLoss", "SoftmaxLoss")), "unknown-type")  # fmt: skip

    assert one.where == f"{tmp_path / 'net.prototxt'}:5: layer 'loss' (SoftmaxLoss)"
    assert str(one) == f"{one.where}: error: {one.message} [unknown-type]"


# -- what cannot be read -----------------------------------------------------------------------


def test_a_file_that_is_not_there_is_a_finding(tmp_path):
    [one] = lint(tmp_path / "none.prototxt")

    assert (one.severity, one.code) == ("error", "unreadable")
    assert one.where.endswith("none.prototxt")


def test_every_fault_of_the_text_is_a_finding(found):
    findings = found('layer { nam: "a" }\nlayer { name: 3 }\nlayer { hole: 2 }')

    assert [finding.code for finding in findings] == ["unknown-field", "syntax", "unknown-field"]
    assert [finding.where.rpartition("net.prototxt:")[2] for finding in findings] == [
        "1:9", "2:15", "3:9",
    ]  # fmt: skip
    assert "'name'" in findings[0].message


def test_fields_of_forks_are_named_and_the_rest_is_looked_at(found):
    findings = found('layer { name: "a" type: "Nothing" global_stuff: 1 power_param { } }')

    assert ("error", "unknown-field") in codes(findings)
    assert ("error", "unknown-type") in codes(findings)


def test_binary_files_are_refused(found, tmp_path):
    (tmp_path / "net.caffemodel").write_bytes(b"\x0a\x00\x01")

    [one] = lint(tmp_path / "net.caffemodel")

    assert (one.severity, one.code) == ("error", "unreadable")


def test_names_are_compared_for_the_first_unknown_blobs_alone(found, monkeypatch):
    compared = set()
    monkeypatch.setattr(
        "demitasse.core.text.nearest", lambda name, known: compared.add(name) if known else []
    )
    layers = (
        f'layer {{ name: "r{i}" type: "ReLU" bottom: "a{i}" top: "b{i}" }}' for i in range(100)
    )

    unknown = [one for one in found("".join(layers)) if one.code == "unknown-blob"]

    assert len(unknown) == 100
    assert compared == {f"a{i}" for i in range(1, 20)}  # there is no layer above the first


# -- layers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "severity", "code", "says"),
    [
        (
            DATA + IP.replace('"x"', '"z"', 1) + LOSS,
            "error", "unknown-blob", "'z'",
        ),
        (DATA + IP + LOSS + IP.replace('top: "ip"', 'top: "more"'),
         "warning", "duplicate-name", "name"),
        (DATA + IP + LOSS.replace("SoftmaxWithLoss", "MultiBoxLoss2"),
         "error", "unknown-type", "'MultiBoxLoss2'"),
        (DATA + IP + LOSS.replace("SoftmaxWithLoss", "softmaxwithloss"),
         "error", "unknown-type", "'SoftmaxWithLoss'"),
        (DATA + IP + LOSS + 'layer { name: "r" type: "ReLU" bottom: "x" top: "r" }',
         "warning", "unused-blob", "'r'"),
        (DATA + IP.replace('weight_filler { type: "xavier" }', "") + LOSS,
         "warning", "zero-weights", "0"),
        (DATA + IP + 'layer { name: "s" type: "Sigmoid" bottom: "ip" top: "s" }'
         'layer { name: "d" type: "Dropout" bottom: "s" top: "s" }'
         + LOSS.replace('"ip"', '"s"'),
         "error", "in-place", "'s' (Sigmoid)"),
        (DATA + IP + 'layer { name: "s" type: "Softmax" bottom: "ip" top: "s" }'
         + LOSS.replace('"ip"', '"s"'),
         "warning", "twice", "'s'"),
        (DATA + IP + 'layer { name: "r" type: "ReLU" bottom: "ip" top: "ip" }' + LOSS,
         "warning", "relu-before-loss", ""),
        (DATA + IP + 'layer { name: "d" type: "Dropout" bottom: "ip" top: "ip" '
         "include { phase: TEST } }" + LOSS,
         "warning", "dropout-in-test", "TEST"),
        (DATA + STILL + LOSS, "warning", "all-frozen", ""),
        (DATA + IP + 'layer { name: "b" type: "BatchNorm" bottom: "ip" top: "ip" '
         "param { lr_mult: 1 } }" + LOSS, "error", "batch-norm-lr", "0"),
        (DATA + IP + 'layer { name: "b" type: "BatchNorm" bottom: "ip" top: "ip" '
         "param { lr_mult: 1 } param { lr_mult: 0 } param { lr_mult: 0 } }" + LOSS,
         "note", "batch-norm-lr", "0"),
        (DATA + IP + 'layer { name: "b" type: "BatchNorm" bottom: "ip" top: "ip" '
         "batch_norm_param { use_global_stats: false } }" + LOSS,
         "warning", "batch-norm-stats", "use_global_stats"),
        (DATA + IP + 'layer { name: "b" type: "BatchNorm" bottom: "ip" top: "ip" }' + LOSS,
         "note", "batch-norm-scale", "Scale"),
        (DATA + IP + 'layer { name: "b" type: "BatchNorm" bottom: "ip" top: "ip" }' + LOSS,
         "note", "useless-bias", "bias_term: false"),
        (DATA + IP, "warning", "no-loss", ""),
    ],
    ids=lambda value: value if isinstance(value, str) and "-" in value and len(value) < 20 else "",
)  # fmt: skip
def test_layers_that_are_not_as_meant(found, text, severity, code, says):
    one = the(found(text.replace("TRANSFORM", "")), code)

    assert one.severity == severity
    assert says in one.message


def net(*layers, before_loss="ip"):
    """A net of the data, these layers, an inner product of the last one's top, and the loss."""
    text = DATA.replace("TRANSFORM", "") + "".join(layers)
    return text + IP.replace('"x"', f'"{before_loss}"', 1) + LOSS


def layer(kind, bottom, top, fields=""):
    bottoms = " ".join(f'bottom: "{name}"' for name in bottom.split())
    tops = " ".join(f'top: "{name}"' for name in top.split())
    return f'layer {{ name: "{kind} of {bottom}" type: "{kind}" {bottoms} {tops} {fields} }}'


@pytest.mark.parametrize(
    ("kind", "fields", "bottoms"),
    [
        ("Convolution", "convolution_param { num_output: 2 kernel_size: 1 }", "x"),
        ("DepthwiseConvolution", "convolution_param { num_output: 3 kernel_size: 1 }", "x"),
        ("ConvolutionDepthwise", "convolution_param { num_output: 3 kernel_size: 1 }", "x"),
        ("Deconvolution", "convolution_param { num_output: 3 kernel_size: 1 }", "x"),
        ("Embed", "embed_param { num_output: 3 input_dim: 3 }", "y"),
        ("LSTM", "recurrent_param { num_output: 3 }", "x y"),
        ("RNN", "recurrent_param { num_output: 3 }", "x y"),
    ],
)
def test_weights_of_every_type_want_a_filler(found, kind, fields, bottoms):
    filled = fields.replace(" }", ' weight_filler { type: "xavier" } }')

    without = found(net(layer(kind, bottoms, "h", fields), before_loss="h"))
    with_one = found(net(layer(kind, bottoms, "h", filled), before_loss="h"))

    assert ("warning", "zero-weights") in codes(without)
    assert ("warning", "zero-weights") not in codes(with_one)


NEEDED = [
    (layer("Swish", "x", "h"), "Dropout"),
    (layer("MVN", "x", "h"), "ReLU"),
    (layer("ReLU", "x", "h") + layer("TanH", "h", "h"), "Dropout"),
    (layer("Power", "x", "h") + layer("ReLU", "h", "h"), "BatchNorm"),
    (layer("Power", "x", "h") + layer("ReLU6", "h", "h"), "Dropout"),
    (layer("Sigmoid", "x", "g") + layer("Flatten", "g", "h"), "Dropout"),
    (layer("Power", "x", "h") + layer("ReLU", "h", "h") + layer("Dropout", "h", "h"), "Scale"),
    (layer("LSTMUnit", "x x y", "h g"), "Dropout"),
    (layer("LRN", "x", "h"), "Dropout"),
]
"""What comes first, and what then works in place on its top, which is needed."""
NOT_NEEDED = [
    (layer("GELU", "x", "h"), "Dropout"),
    (layer("ReLU", "x", "h"), "BatchNorm"),
    (layer("Power", "x", "h") + layer("ReLU", "h", "h"), "Dropout"),
    (layer("Power", "x", "h") + layer("PReLU", "h", "h"), "BatchNorm"),
    (layer("Power", "x", "g") + layer("Flatten", "g", "h"), "Dropout"),
    (layer("MVN", "x", "h", "mvn_param { normalize_variance: false }"), "ReLU"),
    (layer("LSTMUnit", "x x y", "g h"), "Dropout"),
    (layer("Sigmoid", "x", "h"), "ReLU"),
    (layer("TanH", "x", "h"), "ReLU6"),
    (layer("LRN", "x", "h"), "ReLU"),
]


@pytest.mark.parametrize(("first", "second"), NEEDED)
def test_what_the_gradient_needs_is_not_to_be_overwritten(found, first, second):
    findings = found(net(first, layer(second, "h", "h"), before_loss="h"))

    assert the(findings, "in-place").where.endswith(f"'{second} of h' ({second})")


@pytest.mark.parametrize(("first", "second"), NOT_NEEDED)
def test_what_the_gradient_does_not_need_may_be_overwritten(found, first, second):
    findings = found(net(first, layer(second, "h", "h"), before_loss="h"))

    assert "in-place" not in {code for _, code in codes(findings)}


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (first, second, same)
        for pairs, same in ((NEEDED, False), (NOT_NEEDED, True))
        for first, second in pairs
        if "LSTMUnit" not in first  # whose bottoms have shapes of their own
    ],
)
def test_gradients_are_wrong_where_lint_says_so(first, second, same):
    gradients = []
    for top in ("h", "elsewhere"):
        text = f"""force_backward: true
        layer {{ name: "x" type: "Input" top: "x" input_param {{
          shape {{ dim: 3 dim: 4 dim: 2 dim: 2 }} }} }}
        {first} {layer(second, "h", top, "scale_param { filler { value: -2 } }")}
        {layer("Power", top, "cubes", "power_param { power: 3 }")}
        {layer("Reduction", "cubes", "sum", "loss_weight: 1")}
        """
        param = parse_text(text, NetParameter)
        with Net(param, "TRAIN", device="numpy", seed=1, optimize=False) as one:
            random = np.random.default_rng(2)
            one.blobs["x"].data[...] = 3 * random.normal(size=(3, 4, 2, 2)) + 1
            one.forward()
            one.backward()
            gradients.append(np.array(one.blobs["x"].diff))

    assert np.allclose(*gradients, rtol=1e-4, atol=1e-5) == same


def test_a_bias_that_learns_is_enough(found):
    weight_only = IP.replace("inner_product_param", "param { lr_mult: 0 } inner_product_param")

    assert found(DATA.replace("TRANSFORM", "") + weight_only + LOSS) == []


def test_layers_of_every_type_count_as_learning(found):
    fields = 'convolution_param { num_output: 3 kernel_size: 1 weight_filler { type: "xavier" } }'

    text = net(layer("DepthwiseConvolution", "x", "h", fields), before_loss="h")

    assert found(text.replace(IP.replace('"x"', '"h"', 1), STILL.replace('"x"', '"h"', 1))) == []


def test_a_layer_nobody_knows_may_learn(found):
    python = layer("Python", "x", "h", 'python_param { module: "m" layer: "l" }')

    text = DATA.replace("TRANSFORM", "") + python + STILL.replace('"x"', '"h"', 1) + LOSS

    assert found(text) == []


def test_files_of_nvcaffe_have_the_rates_of_scale_and_bias_first(found):
    rates = 2 * "param { lr_mult: 1 } " + "batch_norm_param { scale_bias: true }"

    findings = found(net(layer("BatchNorm", "x", "h", rates), before_loss="h"))

    assert codes(findings) == []


def test_the_bias_of_a_deconvolution_is_useless_before_batch_norm_too(found):
    fields = 'convolution_param { num_output: 3 kernel_size: 1 weight_filler { type: "xavier" } }'
    norm = layer("BatchNorm", "h", "n") + layer("Scale", "n", "s")

    findings = found(net(layer("Deconvolution", "x", "h", fields), norm, before_loss="s"))

    assert codes(findings) == [("note", "useless-bias")]


def test_what_any_loss_contains_is_not_put_before_it(found):
    softmax = layer("Softmax", "ip", "p")
    loss = LOSS.replace('"ip"', '"p"').replace(
        '"SoftmaxWithLoss"', '"InfogainLoss" infogain_loss_param { source: "matrix" }'
    )

    findings = found(DATA.replace("TRANSFORM", "") + IP + softmax + loss)

    assert codes(findings) == [("warning", "twice"), ("warning", "missing-file")]
    assert "source 'matrix'" in the(findings, "missing-file").message


def test_labels_are_compared_with_scores_behind_any_layer_that_keeps_their_shape(found):
    text = DATA.replace("TRANSFORM", "") + IP.replace("num_output: 3", "num_output: 2")
    exp = layer("Exp", "ip", "e")

    the(found(text + exp + LOSS.replace('"ip"', '"e"')), "label-range")


def test_lists_of_labelled_images_are_looked_for(found):
    data = """layer { name: "data" type: "ImageSegData" top: "x" top: "y"
      image_data_param { source: "none.txt" batch_size: 1 label_type: PIXEL } }"""

    assert ("warning", "missing-file") in codes(found(data + IP + LOSS))


def test_dropout_that_samples_in_test_has_an_effect_there(found):
    drop = """layer { name: "d" type: "Dropout" bottom: "ip" top: "ip" include { phase: TEST }
      dropout_param { sample_weights_test: true } }"""

    findings = found(DATA.replace("TRANSFORM", "") + IP + drop + LOSS)

    assert ("warning", "dropout-in-test") not in codes(findings)


@pytest.fixture
def scaled_by_user():
    """A type of a user, who says what its parameters are."""
    weight = ParamMetadata("weight", "weight", "scale_param.filler")

    @register_layer(
        "Mixes", metadata=LayerMetadata(params=(weight,), backward_inputs={"tops": ALWAYS})
    )
    class Mixes(Layer):
        pass

    yield Mixes
    unregister("Mixes")


def test_what_a_user_says_of_his_type_counts(found, scaled_by_user):
    findings = found(net(layer("Mixes", "x", "h"), layer("Dropout", "h", "h"), before_loss="h"))

    assert codes(findings) == [("error", "in-place"), ("warning", "zero-weights")]


def test_the_same_of_many_layers_is_said_once(found):
    more = "".join(
        IP.replace('"ip"', f'"ip{i}"').replace('weight_filler { type: "xavier" }', "")
        + LOSS.replace('"ip"', f'"ip{i}"').replace('"loss"', f'"loss{i}"')
        for i in range(3)
    )

    one = the(found(DATA.replace("TRANSFORM", "") + more), "zero-weights")

    assert "2" in one.message
    assert one.where.endswith("layer 'ip0' (InnerProduct)")


def test_what_is_so_in_one_phase_says_in_which(found):
    relu = 'layer { name: "r" type: "ReLU" bottom: "x" top: "r" include { phase: TEST } }'
    text = DATA.replace("TRANSFORM", "") + IP + LOSS + relu

    assert "TEST" in the(found(text), "unused-blob").message
    everywhere = the(found(text.replace("include { phase: TEST }", "")), "unused-blob")
    assert "'r'" in everywhere.message
    assert "TEST" not in everywhere.message


def test_loss_weights_and_silence_count(found):
    text = (
        DATA.replace("TRANSFORM", "")
        + IP
        + """
    layer { name: "sum" type: "Reduction" bottom: "ip" top: "sum" loss_weight: 1 }
    layer { name: "quiet" type: "Silence" bottom: "y" }
    """
    )

    assert found(text) == []


def test_a_net_for_one_phase_is_not_taken_for_a_broken_one(found):
    text = (DATA.replace("TRANSFORM", "include { phase: TRAIN }")) + IP + LOSS

    [one] = found(text)

    assert (one.severity, one.code) == ("note", "one-phase")
    assert "TEST" in one.message


def test_rules_of_both_kinds_are_an_error(found):
    text = IP.replace("inner_product_param", "include { } exclude { } inner_product_param")

    [one] = [one for one in found(text) if one.code == "rules"]
    assert one.severity == "error"
    assert re.search(r"\.prototxt:\d+$", one.where)


def test_a_weighted_top_that_is_read_is_warned_of(found):
    weighted = IP.replace("inner_product_param", "loss_weight: 0.1 inner_product_param")

    one = the(found(DATA.replace("TRANSFORM", "") + weighted + LOSS), "moved-weight")

    assert one.severity == "warning"
    assert "'ip'" in one.message


def test_a_weighted_top_that_nobody_reads_is_right(found):
    weighted = LOSS.replace('top: "loss"', 'top: "loss" loss_weight: 0.1')

    assert found(DATA.replace("TRANSFORM", "") + IP + weighted) == []


# -- data --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transform", "severity", "code", "says"),
    [
        ("transform_param { mirror: true }", "warning", "mirror-in-test", "TEST"),
        ("transform_param { crop_size: 9 }", "error", "crop-size",
         "8 x 8"),
        ("transform_param { scale: 0.00392157 mean_value: 0.5 }", "warning", "mean-before-scale",
         "127.5"),
        ("transform_param { mean_value: [123.68, 116.779, 103.939] }", "warning", "mean-in-rgb",
         "mean_value"),
        ('transform_param { mean_file: "none.binaryproto" }', "warning", "missing-file",
         "'none.binaryproto'"),
    ],
)  # fmt: skip
def test_transformations_that_are_not_as_meant(found, transform, severity, code, says):
    one = the(found(DATA.replace("TRANSFORM", transform) + IP + LOSS), code)

    assert one.severity == severity
    assert says in one.message


def test_mirroring_in_train_only_is_right(found):
    train = DATA.replace("TRANSFORM", "include { phase: TRAIN } transform_param { mirror: true }")
    test = DATA.replace("TRANSFORM", "include { phase: TEST }")

    assert found(train + test + IP + LOSS) == []


def test_imagenets_mean_in_the_right_order_is_right(found):
    transform = "transform_param { mean_value: [103.939, 116.779, 123.68] }"

    assert found(DATA.replace("TRANSFORM", transform) + IP + LOSS) == []


def test_a_mean_of_another_size_is_an_error(found, tmp_path):
    mean = BlobProto(num=1, channels=3, height=4, width=4)
    set_floats(mean, np.zeros(48, np.float32))
    write_binary(tmp_path / "mean.binaryproto", mean)
    transform = 'transform_param { mean_file: "mean.binaryproto" crop_size: 5 }'

    findings = found(DATA.replace("TRANSFORM", transform) + IP + LOSS)

    assert all(size in the(findings, "mean-size").message for size in ("8 x 8", "4 x 4"))
    assert "4 x 4" in the(findings, "crop-size").message


def test_labels_beyond_the_scores_are_an_error(found):
    text = DATA.replace("TRANSFORM", "") + IP.replace("num_output: 3", "num_output: 2")
    relu = 'layer { name: "r" type: "PReLU" bottom: "ip" top: "r" }'

    one = the(found(text + relu + LOSS.replace('"ip"', '"r"')), "label-range")

    assert all(name in one.message for name in ("'data'", "0 to 2", "0 to 1"))


def test_an_ignored_label_may_be_beyond(found):
    text = DATA.replace("TRANSFORM", "") + IP.replace("num_output: 3", "num_output: 2")
    loss = LOSS.replace('top: "loss"', 'top: "loss" loss_param { ignore_label: 2 }')

    assert found(text + loss) == []


def test_lists_of_images_are_looked_at(found, tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.zeros((6, 7, 3), np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "list.txt").write_text("a.png 7\n")
    data = """layer { name: "data" type: "ImageData" top: "x" top: "y"
      image_data_param { source: "list.txt" batch_size: 1 } transform_param { crop_size: 7 } }"""

    findings = found(data + IP + LOSS)

    assert "6 x 7" in the(findings, "crop-size").message
    assert "7 to 7" in the(findings, "label-range").message


def test_data_that_are_not_there_are_a_warning_only(found):
    text = DATA.replace("TRANSFORM", "transform_param { crop_size: 99 }").replace('"db"', '"no"')

    assert codes(found(text + IP + LOSS)) == [("warning", "missing-file")]


def test_means_of_data_layers_without_a_source_are_looked_for(found):
    data = """layer { name: "data" type: "MemoryData" top: "x" top: "y"
      memory_data_param { batch_size: 1 channels: 3 height: 8 width: 8 }
      transform_param { mean_file: "none" } }"""

    one = the(found(data + IP + LOSS), "missing-file")

    assert "mean_file 'none'" in one.message


def test_a_source_named_as_its_mean_is_opened_too(found):
    text = DATA.replace("TRANSFORM", 'transform_param { mean_file: "list.txt" }')

    findings = found(text.replace('"db"', '"list.txt"') + IP + LOSS, list_txt="a.png 0")

    assert codes(findings) == 2 * [("error", "wrong-source")]


# -- old files ---------------------------------------------------------------------------------


def test_old_formats_are_looked_at_as_upgraded(found, tmp_path):
    text = """
    layers { name: "data" type: DATA top: "x" top: "y"
      data_param { source: "db" backend: LMDB batch_size: 2 mirror: true } }
    layers { name: "ip" type: INNER_PRODUCT bottom: "x" top: "ip"
      inner_product_param { num_output: 3 } }
    layers { name: "loss" type: SOFTMAX_LOSS bottom: "ip" bottom: "y" }
    """

    findings = found(text)

    assert codes(findings) == [
        ("warning", "old-format"), ("note", "old-field"), ("warning", "mirror-in-test"),
        ("warning", "zero-weights"),
    ]  # fmt: skip
    assert "`demitasse upgrade net`" in the(findings, "old-format").message
    assert the(findings, "zero-weights").where.startswith(f"{tmp_path / 'net.prototxt'}:4: ")


def test_old_inputs_are_pointed_out(found):
    findings = found('input: "x" input_dim: 1 input_dim: 2 input_dim: 1 input_dim: 1 ' + IP)

    assert codes(findings) == [("note", "old-input")]


def test_findings_can_be_compared_and_hashed():
    one = Finding("note", "code", "message", "where")

    assert {one, Finding("note", "code", "message", "where")} == {one}
    assert str(Finding("note", "code", "message")) == "note: message [code]"


def test_every_recorded_file_can_be_looked_at(reference_data):
    import json

    for entry in json.loads((reference_data / "prototxt_index.json").read_text()):
        findings = lint(reference_data / entry["file"])

        if entry["bvlc_parse"] and "+caffe/" in entry["file"]:
            missing = {"missing-file", "snapshot-folder"}
            assert {f.code for f in findings if f.severity == "error"} <= missing, entry["file"]


# -- set-up ------------------------------------------------------------------------------------

TOP5 = """layer { name: "a" type: "Accuracy" bottom: "ip" bottom: "y" top: "a"
  accuracy_param { top_k: 5 } include { phase: TEST } }
"""


@pytest.mark.parametrize("source", ['"db"', '"no"'], ids=["data", "missing data"])
def test_what_a_layer_refuses_at_its_set_up_is_an_error(found, tmp_path, source):
    text = DATA.replace("TRANSFORM", "").replace('"db"', source)

    one = the(found(text + IP + LOSS + TOP5), "set-up")

    assert one.severity == "error"
    assert one.where == f"{tmp_path / 'net.prototxt'}:6: layer 'a' (Accuracy)"


def test_a_missing_batch_size_is_found_without_data(found):
    text = DATA.replace("TRANSFORM", "").replace("batch_size: 2", "").replace('"db"', '"no"')

    assert the(found(text + IP + LOSS), "set-up").severity == "error"


REFUSED = {
    "bottoms": 'type: "SoftmaxWithLoss" bottom: "ip" top: "r"',
    "kernel": 'type: "Convolution" bottom: "x" top: "r" convolution_param { num_output: 2 }',
    "large": 'type: "Pooling" bottom: "x" top: "r" pooling_param { kernel_size: 3 pad: 3 }',
    "group": 'type: "Convolution" bottom: "x" top: "r" '
    "convolution_param { num_output: 2 kernel_size: 1 group: 2 }",
    "sum": 'type: "Eltwise" bottom: "x" bottom: "ip" top: "r"',
    "axis": 'type: "Concat" bottom: "x" bottom: "x" top: "r" concat_param { axis: 9 }',
    "filler": 'type: "InnerProduct" bottom: "x" top: "r" '
    'inner_product_param { num_output: 2 weight_filler { type: "none" } }',
    "slice": 'type: "Slice" bottom: "x" top: "r" top: "s" top: "t" top: "u"',
    "no number": 'type: "InnerProduct" bottom: "x" top: "r"',
    "ratio": 'type: "Dropout" bottom: "x" top: "r" dropout_param { dropout_ratio: 2 }',
    "reshape": 'type: "Reshape" bottom: "x" top: "r" reshape_param { shape { dim: 7 dim: -1 } }',
}


@pytest.mark.parametrize("layer", REFUSED.values(), ids=REFUSED)
def test_lint_refuses_what_a_net_refuses(found, tmp_path, layer):
    read = "".join(
        f'layer {{ name: "s{top}" type: "Silence" bottom: "{top}" }}\n'
        for top in "rstu"
        if f'top: "{top}"' in layer
    )
    text = DATA.replace("TRANSFORM", "") + IP + LOSS + f'layer {{ name: "r" {layer} }}\n' + read

    errors = [finding for finding in found(text) if finding.severity == "error"]

    with pytest.raises(DemitasseError):
        Net(tmp_path / "net.prototxt", "TRAIN", device="numpy")
    assert [one.where for one in errors] == [
        f"{tmp_path / 'net.prototxt'}:6: layer 'r' ({layer.split(chr(34))[1]})"
    ]


def test_a_set_up_writes_no_file_and_runs_no_code(found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('ran', 'w')")
    monkeypatch.syspath_prepend(str(tmp_path))
    output = """layer { name: "o" type: "HDF5Output" bottom: "ip" bottom: "y"
      hdf5_output_param { file_name: "out.h5" } }"""
    python = """layer { name: "p" type: "Python" bottom: "ip" top: "p"
      python_param { module: "evil" layer: "Evil" } }"""

    assert found(DATA.replace("TRANSFORM", "") + IP + LOSS + output) == []
    found(DATA.replace("TRANSFORM", "") + IP + LOSS + python)

    assert not (tmp_path / "out.h5").exists()
    assert not (tmp_path / "ran").exists()


def test_findings_are_in_the_order_of_lines(found):
    findings = found(
        DATA.replace("TRANSFORM", "transform_param { mirror: true }")
        + IP.replace("xavier", "constant").replace('weight_filler { type: "constant" }', "")
        + TOP5.replace('"Accuracy"', '"Acuracy"')
        + LOSS
    )

    lines = [int(one.where.rpartition("prototxt:")[2].split(":")[0]) for one in findings]
    assert len(lines) >= 3
    assert lines == sorted(lines)
    assert [one.severity for one in findings] != sorted(one.severity for one in findings)

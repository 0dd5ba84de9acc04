"""``demitasse summary``: shapes, parameters and multiply-adds, counted by hand."""

import json
from importlib import import_module

import pytest

from demitasse import Net
from demitasse.io.proto import NetParameter, parse_text
from demitasse.net.summary import net_summary

NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 4 dim: 5 dim: 5 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv"
  convolution_param { num_output: 6 kernel_size: 3 group: 2 } }
layer { name: "up" type: "Deconvolution" bottom: "conv" top: "up"
  convolution_param { num_output: 3 kernel_size: 2 stride: 2 bias_term: false } }
layer { name: "ip" type: "InnerProduct" bottom: "up" top: "ip"
  inner_product_param { num_output: 7 } }
layer { name: "relu" type: "ReLU" bottom: "ip" top: "ip" }
"""


@pytest.fixture
def found():
    return net_summary(Net(parse_text(NET, NetParameter), "TEST"))


def test_layers_are_in_order_with_their_shapes(found):
    assert [layer["name"] for layer in found["layers"]] == ["x", "conv", "up", "ip", "relu"]
    assert found["layers"][1]["tops"] == {"conv": [2, 6, 3, 3]}
    assert found["layers"][1]["bottoms"] == ["x"]


def test_parameters_are_counted(found):
    counts = [layer["parameters"] for layer in found["layers"]]

    assert counts == [0, 6 * 2 * 9 + 6, 6 * 3 * 4, 7 * 108 + 7, 0]
    assert found["total"]["parameters"] == sum(counts)
    assert found["total"]["parameter_bytes"] == 4 * sum(counts)


def test_multiply_adds_are_counted(found):
    work = [layer["multiply_adds"] for layer in found["layers"]]

    conv = 2 * 6 * 3 * 3 * (2 * 3 * 3)  # every output sums 2 channels of 3 x 3
    up = 2 * 6 * 3 * 3 * (3 * 2 * 2)  # every input goes into 3 channels of 2 x 2
    ip = 2 * 7 * 108
    assert work == [None, conv, up, ip, None]
    assert found["total"]["multiply_adds"] == conv + up + ip


def test_recurrent_layers_work_at_every_step():
    text = """
    layer { name: "x" type: "Input" top: "x" top: "cont"
      input_param { shape { dim: 3 dim: 2 dim: 5 } shape { dim: 3 dim: 2 } } }
    layer { name: "lstm" type: "LSTM" bottom: "x" bottom: "cont" top: "h"
      recurrent_param { num_output: 4 } }
    """

    found = net_summary(Net(parse_text(text, NetParameter), "TEST"))

    assert found["total"]["multiply_adds"] == 3 * 2 * (4 * 4 * 5 + 4 * 4 * 4)


def test_shared_parameters_count_once(project, run):
    shared = 'param { name: "w" } param { name: "b" } inner_product_param { num_output: 9 }'
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 9 } } }
    """ + "".join(
        f'layer {{ name: "{n}" type: "InnerProduct" bottom: "x" top: "{n}" {shared} }}'
        for n in "ab"
    )

    found = net_summary(Net(parse_text(text, NetParameter), "TEST"))

    assert found["total"]["parameters"] == 9 * 9 + 9


def test_the_table_of_a_file(project, run):
    result = run("summary net.prototxt")

    assert result.exit_code == 0
    assert "stripes, phase TEST" in result.stdout
    assert "InnerProduct" in result.stdout
    assert "30 parameters (120 bytes)" in result.stdout


def test_as_json(project, run):
    found = json.loads(run("summary net.prototxt -phase TRAIN --json").stdout)

    assert found["total"]["layers"] == 3
    assert found["layers"][0]["tops"] == {"data": [8, 1, 3, 3], "label": [8]}


def test_what_runs_each_layer_is_shown_on_request(project, run):
    plain = run("summary deploy.prototxt").stdout
    shown = run("summary deploy.prototxt --runs --device numpy").stdout
    found = json.loads(run("summary deploy.prototxt --runs --device numpy --json").stdout)

    assert "Why no faster code runs" not in plain
    assert "[1] numpy has no Step for Softmax" in shown
    assert [layer["code"] for layer in found["runs"]] == ["portable", "numpy", "portable"]


def of_layer(text, shape, phase="TEST"):
    dims = " ".join(f"dim: {n}" for n in shape)
    text = f"""
    layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {dims} }} }} }}
    layer {{ name: "layer" bottom: "x" top: "y" {text} }}
    """
    found = net_summary(Net(parse_text(text, NetParameter), phase))["layers"][1]
    return found["multiply_adds"], found["bytes_moved"]


IMAGE = (2, 4, 5, 5)  # 200 values


@pytest.mark.parametrize(
    ("layer", "products", "values"),
    [
        (
            'type: "DepthwiseConvolution" convolution_param { num_output: 4 group: 4 '
            "kernel_size: 3 }",
            2 * 4 * 3 * 3 * 9,
            200 + 72 + 4 * 9 + 4,
        ),
        ('type: "Scale"', 200, 200 + 4 + 200),
        ('type: "Scale" scale_param { bias_term: true }', 200, 200 + 8 + 200),
        ('type: "LRN" lrn_param { local_size: 3 }', 600, 400),
        ('type: "BatchNorm"', 200, 400 + 9),
        ('type: "Interp" interp_param { zoom_factor: 2 }', 4 * 2 * 4 * 9 * 9, 200 + 8 * 81),
        ('type: "ReLU"', None, 400),
        ('type: "Flatten"', None, 0),
        ('type: "Split"', None, 0),
        ('type: "Concat"', None, 0),
        ('type: "Embed" embed_param { num_output: 7 input_dim: 90 }', None, 2 * 200 * 7),
    ],
)
def test_work_is_counted_by_the_shapes(layer, products, values):
    assert of_layer(layer, IMAGE) == (products, 4 * values)


def test_statistics_of_a_batch_are_work():
    assert of_layer('type: "BatchNorm"', IMAGE, "TRAIN")[0] == 2 * 200


READ_TWICE = """
layer { name: "inception_3a/a_long_name_of_an_input" type: "Input" top: "x" top: "y"
  input_param { shape { dim: 2 dim: 4 dim: 5 dim: 5 } shape { dim: 2 } } }
layer { name: "inception_3a/a_long_name_of_a_layer" type: "InnerProduct" bottom: "x" top: "scores"
  inner_product_param { num_output: 7 } }
layer { name: "accuracy" type: "Accuracy" bottom: "scores" bottom: "y" top: "accuracy" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "y" top: "loss" }
"""


@pytest.mark.parametrize("width", [80, 100, 120])
def test_names_and_types_are_whole_and_splits_folded(tmp_path, run, monkeypatch, width):
    (tmp_path / "net.prototxt").write_text(READ_TWICE)
    import_module("demitasse.cli.commands.inspect")  # imported later, it would keep the patch
    monkeypatch.setattr("demitasse.cli.render.terminal_width", lambda: width)

    shown = run(f"summary {tmp_path / 'net.prototxt'}").stdout

    table = shown.split("\n\n")[1]
    assert max(map(len, table.splitlines())) <= width
    names = {"inception_3a/a_long_name_of_an_input", "inception_3a/a_long_name_of_a_layer"}
    assert {*names, "SoftmaxWithLoss", "InnerProduct", "scores,"} <= set(table.split())
    assert "split" not in table.lower()
    assert "4 layers and 2 Split layers" in shown


def test_memory_is_that_of_the_chosen_device(tmp_path, run):
    (tmp_path / "net.prototxt").write_text(READ_TWICE)

    assert "memory of cpu: " in run(f"summary {tmp_path / 'net.prototxt'}").stdout
    assert "memory of numpy: " in run(f"summary {tmp_path / 'net.prototxt'} --device numpy").stdout
    assert run(f"summary {tmp_path / 'net.prototxt'} --device torch:none").exit_code == 4


def test_the_code_of_layers_on_the_host_mentions_no_gpu(tmp_path, run):
    (tmp_path / "net.prototxt").write_text(READ_TWICE)

    assert "CUDA" not in run(f"summary {tmp_path / 'net.prototxt'} --runs --device cpu").stdout

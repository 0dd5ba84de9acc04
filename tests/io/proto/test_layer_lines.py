"""Where the layers of a net are written in its file."""

import pytest

from demitasse.io.proto import NetParameter, ReadNet, read_net

V0 = """\
name: "old"

input: "data"
input_dim: 1 input_dim: 1 input_dim: 4 input_dim: 4
layers { layer { name: "pad" type: "padding" pad: 1 } bottom: "data" top: "pad" }
layers {
  layer { name: "conv" type: "conv" num_output: 1 kernelsize: 3 } bottom: "pad" top: "conv"
}
layers { layer { name: "relu" type: "relu" } bottom: "conv" top: "conv" }
"""


@pytest.fixture
def read(tmp_path):
    def make(text):
        path = tmp_path / "net.prototxt"
        path.write_text(text)
        return read_net(path)

    return make


def lines_of(net):
    return {layer.name: line for layer, line in zip(net.message.layer, net.lines, strict=True)}


def test_current_layers_know_their_lines(read):
    net = read('name: "n"\nlayer { name: "a" }\n\nlayer {\n name: "b" } layer: [{ name: "c" }]')

    assert lines_of(net) == {"a": 2, "b": 4, "c": 5}


def test_lines_survive_the_upgrade_of_the_oldest_format(read):
    assert lines_of(read(V0)) == {"input": 3, "conv": 6, "relu": 9}


def test_the_origin_names_the_file(read, tmp_path):
    net = read("layer { name: 'a' }")

    assert net.origin(0) == f"{tmp_path / 'net.prototxt'}:1"


def test_what_was_not_read_from_a_file_has_no_lines(read):
    net = read("input: 'x' input_dim: [1, 1, 2, 2] layer { name: 'a' }")
    made = ReadNet(NetParameter(layer=[{}]), "solver.prototxt:3: net_param")

    assert net.origin(2) == ""
    assert made.origin(0) == ""

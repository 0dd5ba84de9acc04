"""Where the layers of a net are written in its file."""

import pytest

from demitasse.proto import (
    NetParameter,
    carry_lines,
    keep_lines,
    line_of_layer,
    lines,
    origin_of_layer,
    read_net_params,
)

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
        return read_net_params(path)

    return make


def lines_of(net):
    return {layer.name: line_of_layer(net, i) for i, layer in enumerate(net.layer)}


def test_current_layers_know_their_lines(read):
    net = read('name: "n"\nlayer { name: "a" }\n\nlayer {\n name: "b" } layer: [{ name: "c" }]')

    assert lines_of(net) == {"a": 2, "b": 4, "c": 5}


def test_lines_survive_the_upgrade_of_the_oldest_format(read):
    assert lines_of(read(V0)) == {"input": 3, "conv": 6, "relu": 9}


def test_the_origin_names_the_file(read, tmp_path):
    net = read("layer { name: 'a' }")

    assert origin_of_layer(net, 0) == f"{tmp_path / 'net.prototxt'}:1"


def test_what_was_not_read_from_a_file_has_no_lines(read):
    net = read("layer { name: 'a' }")

    assert line_of_layer(net, 1) is None
    assert line_of_layer(net, -1) is None
    assert line_of_layer(NetParameter(layer=[{}]), 0) is None
    assert origin_of_layer(NetParameter(layer=[{}]), 0) == ""


def test_a_copy_and_a_selection_can_inherit(read):
    net = read("layer { name: 'a' }\nlayer { name: 'b' }\nlayer { name: 'c' }")
    copy, part = NetParameter(), NetParameter(layer=[net.layer[2], net.layer[0]])
    copy.CopyFrom(net)

    carry_lines(net, copy)
    carry_lines(net, part, [2, 0])

    assert lines_of(copy) == {"a": 1, "b": 2, "c": 3}
    assert lines_of(part) == {"c": 3, "a": 1}


def test_nothing_is_inherited_from_a_net_without_lines():
    old, new = NetParameter(), NetParameter(layer=[{}])

    carry_lines(old, new)

    assert line_of_layer(new, 0) is None


def test_only_the_nets_read_last_are_remembered():
    nets = [NetParameter(layer=[{}]) for _ in range(lines.KEPT + 1)]

    for i, net in enumerate(nets):
        keep_lines(net, "f", [i])

    assert line_of_layer(nets[0], 0) is None
    assert [line_of_layer(net, 0) for net in nets[1:]] == list(range(1, lines.KEPT + 1))

"""Drawings of nets: ``caffe.draw``."""

import io
import os
import sys
import types
from xml.etree import ElementTree as ET

import pytest
from expect_error import expect_error
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import demitasse.compat.pycaffe as caffe
from demitasse.compat.pycaffe import draw
from demitasse.compat.pycaffe.graphs.dot import Dot, Edge, Node
from demitasse.compat.pycaffe.graphs.layout import layered
from demitasse.compat.pycaffe.proto import caffe_pb2
from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.proto import parse_text

NET = """
name: "small net"
layer { name: "data" type: "Data" top: "data" top: "label" data_param { batch_size: 64 }
        include { phase: TRAIN } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv/1" param { lr_mult: 1 }
        param { lr_mult: 2 }
        convolution_param { num_output: 20 kernel_size: 5 stride: 2 pad: 1 } }
layer { name: "relu" type: "ReLU" bottom: "conv/1" top: "conv/1" }
layer { name: "pool" type: "Pooling" bottom: "conv/1" top: "pool"
        pooling_param { pool: AVE kernel_h: 3 kernel_w: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
        inner_product_param { num_output: 10 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss"
        include { phase: TRAIN } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" exclude { phase: TRAIN } }
"""


@pytest.fixture(autouse=True)
def _no_graphviz(monkeypatch):
    """Graphs are drawn by this package on every machine."""
    monkeypatch.setattr("shutil.which", lambda name: None)


@pytest.fixture
def net():
    return parse_text(NET, caffe_pb2.NetParameter)


def texts(svg):
    return [element.text for element in ET.fromstring(svg).iter() if element.tag.endswith("text")]


def labels(net, rankdir="TB", **options):
    return [draw.get_layer_label(layer, rankdir, **options) for layer in net.layer]


def test_boxes_tell_what_their_layers_do(net):
    assert labels(net)[1:5] == [
        '"conv (Convolution) kernel size: 5 stride: 2 pad: 1"',
        '"relu (ReLU)"',
        '"pool (Pooling AVE) kernel size: 3x2 stride: 1 pad: 0"',
        '"ip (InnerProduct)"',
    ]


def test_boxes_have_several_lines_in_wide_drawings(net):
    label = draw.get_layer_label(net.layer[1], "LR", display_lrm=True)

    assert label == (r'"conv\n(Convolution)\nkernel size: 5\nstride: 2\npad: 1\nlr mult: 1.0, 2.0"')


def test_windows_are_told_as_far_as_they_are_given():
    layer = caffe_pb2.LayerParameter(name="c", type="Convolution")
    layer.convolution_param.kernel_size.extend([3, 3, 5])
    whole = caffe_pb2.LayerParameter(name="p", type="Pooling")
    whole.pooling_param.global_pooling = True

    assert "kernel size: 3x3x5 stride: 1 pad: 0" in draw.get_layer_label(layer, "TB")
    assert draw.get_layer_label(whole, "TB") == '"p (Pooling MAX) kernel size: all"'


def test_arrows_tell_channels_and_batches(net):
    found = [draw.get_edge_label(layer) for layer in net.layer]

    assert found[:5] == ["Batch 64", "20", '""', '""', "10"]


def test_factors_of_the_learning_rate(net):
    assert draw.get_layer_lr_mult(net.layer[1]) == (1, 2)
    assert draw.get_layer_lr_mult(net.layer[4]) == (1, 1)
    with expect_error(ValueError, mentions="ReLU"):
        draw.get_layer_lr_mult(net.layer[2])
    net.layer[1].param.add()
    with expect_error(ValueError, mentions=["'conv'", "3"]):
        draw.get_layer_lr_mult(net.layer[1])


def test_colours_and_names_for_types():
    assert draw.choose_color_by_layertype("Pooling") == "#FF9900"
    assert draw.choose_color_by_layertype("Concat") == draw.LAYER_STYLE_DEFAULT["fillcolor"]
    assert draw.get_pooling_types_dict() == {
        0: "MAX", 1: "AVE", 2: "STOCHASTIC", 3: "AVE_EXC_PAD",
    }  # fmt: skip


def test_the_graph_of_a_net_in_graphviz_language(net):
    text = draw.draw_net(net, "LR", "raw", phase=caffe.TEST).decode()

    assert text.splitlines()[:2] == ['digraph "small net" {', "rankdir=LR;"]
    assert '"conv/1" [shape=octagon, fillcolor="#E0E0E0", style=filled];' in text
    assert r'"relu\n(ReLU)" [shape=record, fillcolor="#90EE90", style=filled];' in text
    assert r'ip -> "prob\n(Softmax)" [label=""];' in text
    assert "\nprob;\n" in text


@pytest.mark.parametrize(
    ("phase", "there", "missing"), [(caffe.TRAIN, "loss", "prob"), (caffe.TEST, "prob", "loss")]
)
def test_a_phase_has_its_layers(net, phase, there, missing):
    found = texts(draw.draw_net(net, "TB", "svg", phase=phase))

    assert there in found
    assert missing not in found


def test_all_layers_are_drawn_by_default(net):
    assert {"loss", "prob"} <= set(texts(draw.draw_net(net, "TB", "svg")))


def test_a_layer_with_include_and_exclude_is_refused(net):
    net.layer[0].exclude.add()

    with expect_error(ValueError, mentions=["'data'", "include", "exclude"]):
        draw.get_pydot_graph(net, "TB", phase=caffe.TRAIN)


def test_edges_may_go_without_labels(net):
    graph = draw.get_pydot_graph(net, "TB", label_edges=False)

    assert {edge.get("label") for edge in graph.get_edges()} == {'""'}


def test_nets_in_old_formats_are_drawn():
    old = parse_text('layers { name: "r" type: RELU bottom: "x" top: "y" }', caffe_pb2.NetParameter)

    assert "r (ReLU)" in texts(draw.draw_net(old, "TB", "svg"))
    assert len(old.layers) == 1  # what was given is left alone


def test_the_extension_of_a_file_says_how_it_is_drawn(net, tmp_path):
    names = {"PNG": "net.png", "JPEG": "net.jpg", "GIF": "net.gif"}

    for name in (*names.values(), "net.svg", "net.dot", "net.pdf"):
        draw.draw_net_to_file(net, str(tmp_path / name), "TB")

    for format, name in names.items():
        with Image.open(tmp_path / name) as image:
            assert image.format == format
            assert image.height > image.width > 100
    draw.draw_net_to_file(net, os.fsencode(tmp_path / "bytes.svg"), "TB")
    assert (tmp_path / "bytes.svg").read_text() == (tmp_path / "net.svg").read_text()
    assert (tmp_path / "net.svg").read_text().startswith("<svg ")
    assert (tmp_path / "net.dot").read_text().startswith("digraph ")
    assert (tmp_path / "net.pdf").read_bytes().startswith(b"%PDF")


def test_unknown_formats_are_refused(net, tmp_path):
    with expect_error(ConfigError, ErrorCode.UNKNOWN, got="xyz", mentions="svg, png"):
        draw.draw_net_to_file(net, str(tmp_path / "net.xyz"))

    assert not list(tmp_path.iterdir())


def test_pixels_need_pillow(net, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)

    with expect_error(ConfigError, ErrorCode.UNAVAILABLE, extra="image"):
        draw.draw_net(net, "TB", "png")
    assert draw.draw_net(net, "TB", "svg")


def test_very_wide_graphs_are_made_smaller():
    graph = Dot("g", rankdir="LR")
    for i in range(90):
        graph.add_edge(Edge(f"a rather long name for node number {i}", f"n{i + 1}"))
        graph.add_edge(Edge(f"n{i + 1}", f"a rather long name for node number {i + 1}"))

    with Image.open(io.BytesIO(graph.create_png())) as image:
        assert image.width <= 16_000


def test_pydot_draws_where_graphviz_is_installed(net, monkeypatch):
    """Any module with pydot's classes will do."""
    from demitasse.compat.pycaffe.graphs import dot

    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/dot")
    stand_in = types.ModuleType("pydotplus")
    stand_in.__spec__ = types.SimpleNamespace(name="pydotplus")
    stand_in.Dot, stand_in.Node, stand_in.Edge = type("Theirs", (dot.Dot,), {}), Node, Edge
    monkeypatch.setitem(sys.modules, "pydotplus", stand_in)

    assert type(draw.get_pydot_graph(net, "TB")).__name__ == "Theirs"


# -- graphs ---------------------------------------------------------------------------------------


def test_graphs_are_built_as_with_pydot(tmp_path):
    graph = Dot("G", graph_type="digraph", rankdir="BT")
    first = Node("first node", shape="record")
    graph.add_node(first)
    graph.add_edge(Edge(first, "graph", label="5 a"))
    first.set("color", "red")

    assert graph.to_string() == str(graph)
    assert graph.to_string() == (
        'digraph G {\nrankdir=BT;\n"first node" [shape=record, color=red];\n'
        '"first node" -> "graph" [label="5 a"];\n}\n'
    )
    assert graph.get_node("first node") == [first]
    assert graph.get_node("other") == []
    (edge,) = graph.get_edge("first node", "graph")
    assert (edge.get_source(), edge.get_destination()) == ('"first node"', '"graph"')
    assert graph.write_svg(str(tmp_path / "g.svg"))
    assert sorted(texts((tmp_path / "g.svg").read_text())) == ["5 a", "first node", "graph"]
    with expect_error(AttributeError, mentions="create_xyz"):
        graph.create_xyz()


def test_letters_with_a_meaning_are_written_out():
    graph = Dot()
    graph.add_node(Node('"<a> & \\"b\\""'))

    assert texts(graph.create_svg()) == ['<a> & "b"']


@pytest.mark.parametrize(("rankdir", "axis", "sign"), [
    ("TB", 1, 1), ("BT", 1, -1), ("LR", 0, 1), ("RL", 0, -1),
])  # fmt: skip
def test_graphs_run_in_four_directions(rankdir, axis, sign):
    graph = Dot(rankdir=rankdir)
    graph.add_edge(Edge("a", "b"))

    svg = ET.fromstring(graph.create_svg())

    places = [(float(e.get("cx")), float(e.get("cy"))) for e in svg if e.tag.endswith("ellipse")]
    assert (places[1][axis] - places[0][axis]) * sign > 30
    assert places[0][1 - axis] == places[1][1 - axis]


graphs = st.integers(1, 12).flatmap(
    lambda count: st.tuples(
        st.lists(
            st.tuples(st.integers(10, 90), st.integers(10, 40)), min_size=count, max_size=count
        ),
        st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=25),
    )
)


@given(graphs)
def test_nodes_of_any_graph_keep_apart(graph):
    sizes, edges = graph

    layout = layered(sizes, edges, distance=30)

    for i, ((x, y), (width, height)) in enumerate(zip(layout.centers, sizes, strict=True)):
        assert -1e-6 <= x - width / 2 <= x + width / 2 <= layout.size[0] + 1e-6
        assert -1e-6 <= y - height / 2 <= y + height / 2 <= layout.size[1] + 1e-6
        for (other_x, other_y), (w, h) in zip(layout.centers[:i], sizes, strict=False):
            across, down = abs(x - other_x) - (width + w) / 2, abs(y - other_y) - (height + h) / 2
            assert max(across, down) > 10


@given(graphs)
def test_edges_of_any_graph_join_their_nodes(graph):
    sizes, edges = graph

    layout = layered(sizes, edges, distance=30)

    for (source, target), route in zip(edges, layout.routes, strict=True):
        for node, (_, y) in ((source, route[0]), (target, route[-1])):
            assert abs(abs(y - layout.centers[node][1]) - sizes[node][1] / 2) < 1e-6


@given(graphs)
def test_edges_run_down_where_there_is_no_cycle(graph):
    sizes, edges = graph
    downwards = [(min(edge), max(edge)) for edge in edges if edge[0] != edge[1]]

    layout = layered(sizes, downwards, distance=30)

    for source, target in downwards:
        assert layout.centers[source][1] < layout.centers[target][1]


def test_a_chain_is_straight():
    layout = layered([(50, 20)] * 4, [(0, 1), (1, 2), (2, 3)], distance=30)

    assert layout.centers == [(25, 10), (25, 60), (25, 110), (25, 160)]


def test_branches_do_not_cross():
    edges = [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 5)]

    across = [x for x, _ in layered([(50, 20)] * 6, edges, distance=30).centers]

    assert (across[1] < across[2]) == (across[3] < across[4])
    assert across[0] == across[5]

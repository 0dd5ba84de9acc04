"""Layer graphs: names of values, folded layers, symbolic sizes."""

from expect_error import expect_error
from exporting import net

from demitasse.errors import ErrorCode, NetError
from demitasse.interop.export.layer_graph import build_layer_graph
from demitasse.interop.export.sizes import SymbolicSize, declared_sizes, symbolic_sizes

CONV = """
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 4 kernel_size: 3 } }
"""
NORM = 'layer { name: "bn1" type: "BatchNorm" bottom: "conv1" top: "conv1" }\n'
SCALE = 'layer { name: "scale1" type: "Scale" bottom: "conv1" top: "conv1" }\n'
RELU = 'layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }\n'
IMAGE = {"data": (2, 3, 8, 8)}


def graph_of(text, inputs=None, outputs=()):
    made = net(text, inputs or IMAGE)
    return build_layer_graph(made, declared_sizes(made), outputs)


def names(found):
    return [(node.layer.name, [top.name for top in node.tops]) for node in found.nodes]


def test_the_last_value_of_a_blob_has_its_name():
    found = graph_of(CONV + RELU)

    assert names(found) == [("conv1", ["conv1@conv1"]), ("relu1", ["conv1"])]
    assert list(found.outputs) == ["conv1"]


def test_an_input_that_is_overwritten_keeps_its_name():
    found = graph_of('layer { name: "relu" type: "ReLU" bottom: "data" top: "data" }')

    assert [value.name for value in found.inputs] == ["data"]
    assert names(found) == [("relu", ["data@relu"])]
    assert list(found.outputs) == ["data@relu"]


FLAT = """layer { name: "flat" type: "Flatten" bottom: "conv1" top: "flat" }
layer { name: "relu" type: "ReLU" bottom: "flat" top: "flat" }
"""


def test_a_layer_that_overwrites_what_others_read_afterwards_is_refused():
    reader = 'layer { name: "abs" type: "AbsVal" bottom: "conv1" top: "abs" }\n'

    assert list(graph_of(CONV + FLAT).outputs) == ["flat"]
    assert list(graph_of(CONV + reader + FLAT).outputs) == ["abs", "flat"]
    for text, outputs in ((CONV + FLAT + reader, ()), (CONV + FLAT, ["conv1"])):
        with expect_error(NetError, ErrorCode.UNSUPPORTED, layer="relu", blob="conv1"):
            graph_of(text, outputs=outputs)


def test_a_batch_norm_and_the_scale_that_reads_it_are_one():
    found = graph_of(CONV + NORM + SCALE + RELU)

    assert [node.layer.name for node in found.nodes] == ["conv1", "bn1", "relu1"]
    assert found.nodes[1].scale.name == "scale1"
    assert found.nodes[1].tops[0].name == "conv1@scale1"


def test_they_are_two_where_another_layer_reads_between_them_or_the_user_does():
    apart = NORM.replace('top: "conv1"', 'top: "bn1"')
    scale = SCALE.replace('"conv1"', '"bn1"', 1).replace('top: "conv1"', 'top: "out"')
    other = 'layer { name: "other" type: "ReLU" bottom: "bn1" top: "other" }'

    assert len(graph_of(CONV + apart + scale).nodes) == 2
    assert len(graph_of(CONV + apart + scale, outputs=["bn1"]).nodes) == 3
    assert len(graph_of(CONV + apart + scale + other).nodes) == 4


def test_dropout_and_splits_are_gone():
    drop = 'layer { name: "drop" type: "Dropout" bottom: "conv1" top: "dropped" }\n'
    sum_ = 'layer { name: "sum" type: "Eltwise" bottom: "dropped" bottom: "conv1" top: "sum" }\n'

    found = graph_of(CONV + drop + sum_)

    assert [node.layer.name for node in found.nodes] == ["conv1", "sum"]
    assert [value.name for value in found.nodes[1].bottoms] == ["conv1", "conv1"]


def test_the_first_axis_of_inputs_is_free():
    made = net(CONV, IMAGE)

    data, conv = symbolic_sizes(made)

    assert data == (SymbolicSize("batch"), 3, 8, 8)
    assert conv == (SymbolicSize("batch"), 4, 6, 6)
    assert made.blobs["data"].shape == (2, 3, 8, 8)


def test_inputs_that_need_one_batch_share_a_symbol_and_others_have_their_own():
    text = 'layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }'

    a, b, other, total = symbolic_sizes(net(text, {"a": (2, 3), "b": (2, 3), "c": (5, 4)}))

    assert a[0] == b[0] == total[0] == SymbolicSize("batch")
    assert other[0] == SymbolicSize("batch_of_c")


def test_sizes_that_are_a_multiple_are_formulas():
    text = """layer { name: "r" type: "Reshape" bottom: "data" top: "r"
      reshape_param { shape { dim: -1 dim: 6 } } }"""

    _, rows = symbolic_sizes(net(text, {"data": (2, 3, 8)}))

    assert rows == (SymbolicSize("batch", 4), 6)
    assert str(rows[0]) == "4*batch"


def test_a_batch_that_a_layer_fixes_is_refused_with_the_layer():
    text = """layer { name: "r" type: "Reshape" bottom: "data" top: "r"
      reshape_param { shape { dim: 2 dim: 12 } } }"""

    with expect_error(NetError, ErrorCode.SHAPE_MISMATCH, field="batch", mentions="'r' (Reshape)"):
        symbolic_sizes(net(text, {"data": (2, 3, 4)}))

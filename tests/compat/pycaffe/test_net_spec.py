"""Nets written as Python programs: ``caffe.NetSpec``."""

import copy

import pytest
from expect_error import expect_error

import demitasse.compat.pycaffe as caffe
from demitasse.compat.pycaffe import layers as L  # noqa: N812
from demitasse.compat.pycaffe import net_spec
from demitasse.compat.pycaffe import params as P  # noqa: N812
from demitasse.compat.pycaffe.proto import caffe_pb2
from demitasse.io.proto import parse_text

XAVIER = {"type": "xavier"}


def lenet():
    n = caffe.NetSpec()
    n.data, n.label = L.DummyData(shape=[{"dim": [8, 1, 28, 28]}, {"dim": [8]}], ntop=2)
    n.conv1 = L.Convolution(n.data, kernel_size=5, num_output=20, weight_filler=XAVIER)
    n.pool1 = L.Pooling(n.conv1, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.conv2 = L.Convolution(n.pool1, kernel_size=5, num_output=50, weight_filler=XAVIER)
    n.pool2 = L.Pooling(n.conv2, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.ip1 = L.InnerProduct(n.pool2, num_output=500, weight_filler=XAVIER)
    n.relu1 = L.ReLU(n.ip1, in_place=True)
    n.ip2 = L.InnerProduct(n.relu1, num_output=10, weight_filler=XAVIER)
    n.loss = L.SoftmaxWithLoss(n.ip2, n.label)
    return n


def inception(bottom, widths):
    """Four branches, joined along the channels; only the last top is named by who calls."""
    one, reduced, three, narrow, five, pooled = widths

    def conv(below, outputs, size):
        made = L.Convolution(below, num_output=outputs, kernel_size=size, pad=size // 2)
        return L.ReLU(made, in_place=True)

    return L.Concat(
        conv(bottom, one, 1),
        conv(conv(bottom, reduced, 1), three, 3),
        conv(conv(bottom, narrow, 1), five, 5),
        conv(L.Pooling(bottom, pool=P.Pooling.MAX, kernel_size=3, stride=1, pad=1), pooled, 1),
    )


def residual(n, name, bottom, outputs):
    """Two convolutions and a way around them."""
    frozen = [{"lr_mult": 0, "decay_mult": 0}] * 3
    n[f"{name}_conv"] = L.Convolution(
        bottom, num_output=outputs, kernel_size=3, pad=1, bias_term=False
    )
    n[f"{name}_bn"] = L.BatchNorm(n[f"{name}_conv"], in_place=True, param=frozen)
    n[f"{name}_scale"] = L.Scale(n[f"{name}_bn"], scale_param={"bias_term": True}, in_place=True)
    n[name] = L.Eltwise(bottom, n[f"{name}_scale"], operation=P.Eltwise.SUM)
    n[f"{name}_relu"] = L.ReLU(n[name], in_place=True)
    return n[f"{name}_relu"]


def fcn():
    from demitasse.compat.pycaffe.coord_map import crop

    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [1, 3, 40, 50]})
    n.conv = L.Convolution(n.data, num_output=4, kernel_size=3, pad=20)
    n.pool = L.Pooling(n.conv, pool=P.Pooling.MAX, kernel_size=2, stride=2)
    n.score = L.Convolution(n.pool, num_output=2, kernel_size=1)
    n.up = L.Deconvolution(
        n.score,
        convolution_param={"num_output": 2, "kernel_size": 4, "stride": 2, "bias_term": False},
        param={"lr_mult": 0},
    )
    n.cropped = crop(n.up, n.data)
    return n


def built(spec, tmp_path, phase=caffe.TEST):
    """The net that a program describes."""
    path = tmp_path / "net.prototxt"
    path.write_text(str(spec.to_proto()))
    return caffe.Net(str(path), phase)


def test_a_program_is_the_message_of_its_net():
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [1, 3]})
    n.ip = L.InnerProduct(n.data, num_output=2, param=[{"lr_mult": 1}, {"lr_mult": 2}])
    n.out = L.ReLU(n.ip, in_place=True, include={"phase": caffe.TEST})

    expected = """
        layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 } } }
        layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
                param { lr_mult: 1 } param { lr_mult: 2 } inner_product_param { num_output: 2 } }
        layer { name: "out" type: "ReLU" bottom: "ip" top: "ip" include { phase: TEST } }
    """
    assert n.to_proto() == parse_text(expected, caffe_pb2.NetParameter)


def test_lenet_runs(tmp_path):
    net = built(lenet(), tmp_path)

    net.forward()

    assert net._layer_names[-4:] == ["ip1", "relu1", "ip2", "loss"]
    assert net.top_names["relu1"] == net.bottom_names["relu1"] == ["ip1"]
    assert tuple(net.blobs["pool2"].shape) == (8, 50, 4, 4)


def test_branches_without_names_run(tmp_path):
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [1, 8, 6, 6]})
    n.out = inception(inception(n.data, (2, 3, 4, 1, 2, 3)), (1, 1, 1, 1, 1, 1))

    net = built(n, tmp_path)

    assert tuple(net.blobs["Concat1"].shape) == (1, 11, 6, 6)
    assert tuple(net.blobs["out"].shape) == (1, 4, 6, 6)
    assert [name for name in net._layer_names if name.startswith("Convolution")] == [
        f"Convolution{i}" for i in range(1, 13)
    ]


def test_residual_blocks_work_in_place(tmp_path):
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [1, 4, 6, 6]})
    residual(n, "b", residual(n, "a", n.data, 4), 4)

    net = built(n, tmp_path)

    assert list(net.blobs)[-2:] == ["b_conv", "b"]
    assert net.bottom_names["b_conv"] == ["a_a_relu_0_split_0"]
    assert [len(net.params[name]) for name in ("a_conv", "a_bn", "a_scale")] == [1, 3, 2]


def test_a_crop_fits_the_picture(tmp_path):
    net = built(fcn(), tmp_path)

    assert tuple(net.blobs["cropped"].shape) == (1, 2, 40, 50)


def test_layers_stand_behind_those_they_need():
    n = caffe.NetSpec()
    data = L.Input(shape={"dim": 3})
    n.last = L.Sigmoid(L.TanH(data))
    n.first = data

    layers = n.to_proto().layer

    assert [layer.name for layer in layers] == ["first", "TanH1", "last"]


def test_layers_without_tops_have_names():
    n = caffe.NetSpec()
    n.a, n.b = L.DummyData(shape={"dim": 3}, ntop=2)
    n.quiet = L.Silence(n.a, ntop=0)

    layers = [*n.to_proto().layer, *net_spec.to_proto(L.Silence(n.b, ntop=0)).layer]

    assert [layer.name for layer in layers] == ["a", "quiet", "DummyData1", "Silence1"]
    assert [list(layer.top) for layer in layers] == [
        ["a", "b"],
        [],
        ["DummyData1", "DummyData2"],
        [],
    ]


def test_tops_know_their_net():
    top = L.ReLU(L.Input(shape={"dim": 3}))

    assert top.to_proto() == caffe.to_proto(top)
    assert [layer.name for layer in top.to_proto().layer] == ["Input1", "ReLU1"]


def test_nets_may_be_deep():
    top = L.Input(shape={"dim": 3})
    for _ in range(3000):
        top = L.ReLU(top)

    assert len(top.to_proto().layer) == 3001


def test_fields_find_their_message():
    top = L.Data(
        name="given",
        source="db",
        backend=P.Data.LMDB,
        transform_param={"mean_value": [1, 2], "mirror": True},
        loss_weight=2,
        include=[{"phase": 0, "stage": ["a", "b"]}, {"min_level": 1}],
    )

    (layer,) = top.to_proto().layer

    assert layer.name == "given"
    assert (layer.data_param.source, layer.data_param.backend) == ("db", P.Data.LMDB)
    assert list(layer.transform_param.mean_value) == [1, 2]
    assert list(layer.loss_weight) == [2]
    assert [list(rule.stage) for rule in layer.include] == [["a", "b"], []]


def test_types_may_share_a_message():
    top = L.Deconvolution(L.Input(shape={"dim": [1, 1, 4, 4]}), num_output=2, kernel_size=4)

    layer = top.to_proto().layer[-1]

    assert layer.convolution_param.num_output == 2


def test_values_become_fields():
    layer = caffe_pb2.LayerParameter()

    net_spec.assign_proto(layer, "top", "single")
    net_spec.assign_proto(layer, "bottom", [])
    net_spec.assign_proto(layer, "convolution_param", {"kernel_size": (3, 5), "pad": 1})
    net_spec.assign_proto(layer, "relu_param", {})

    assert list(layer.top) == ["single"]
    assert list(layer.convolution_param.kernel_size) == [3, 5]
    assert not layer.HasField("relu_param")


def test_types_of_layers_have_fields():
    names = net_spec.param_name_dict()

    assert names["InnerProduct"] == "inner_product"
    assert names["HDF5Data"] == "hdf5_data"
    assert names["Transformation"] == "transform"


def test_tops_are_found_by_attribute_and_by_index():
    n = caffe.NetSpec()
    n["a/b"] = L.Input(shape={"dim": 3})
    n.c = L.ReLU(n["a/b"])

    assert list(n.tops) == ["a/b", "c"]
    assert n["c"] is n.c
    assert not hasattr(n, "d")
    assert list(copy.deepcopy(n).tops) == ["a/b", "c"]
    with pytest.raises(KeyError):
        n["d"]


def test_bottoms_are_tops():
    pair = L.DummyData(ntop=2)

    with pytest.raises(TypeError, match=r"^Silence input 0 is not a Top \(type is <class 'tuple'>"):
        L.Silence(pair, ntop=0)


def test_several_tops_need_several_names():
    n = caffe.NetSpec()
    n.pair = L.DummyData(shape={"dim": 3}, ntop=2)

    with expect_error(TypeError, mentions=["'pair'", "tuple"]):
        n.to_proto()


def test_fields_may_be_added_later_as_ssd_does():
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [1, 3, 8, 8]})
    n.prior = L.PriorBox(n.data, n.data, min_size=4.0)

    n.update("prior", {"max_size": 6.0, "flip": True})

    assert n.keys() == ["data", "prior"]
    assert n.vals() == [n.data, n.prior]
    assert n.to_proto().layer[1].prior_box_param.max_size == [6]


def test_fields_that_are_not_there_are_named():
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": 3})
    n.ip = L.InnerProduct(n.data, num_outputs=3)

    with expect_error(
        AttributeError, mentions=["LayerParameter", "'num_outputs'", "'num_output'"]
    ) as caught:
        n.to_proto()

    assert caught.value.__notes__ == ["in layer 'ip' (InnerProduct)"]


@pytest.mark.parametrize(
    ("field", "value"), [("kernel_size", 6 / 2), ("num_output", 6 / 2), ("kernel_size", [1, 3.0])]
)
def test_a_value_that_a_field_cannot_have_is_named(field, value):
    top = L.Convolution(L.Input(shape={"dim": 3}), **{field: value})

    with expect_error(TypeError, mentions=[field, "3.0", "'//'"]):
        top.to_proto()


@pytest.mark.parametrize(
    ("type_", "field", "value", "key"),
    [("Input", "shape", [1, 3], "dim"), ("Convolution", "weight_filler", "xavier", "std")],
)
def test_a_message_wants_a_dictionary_of_its_fields(type_, field, value, key):
    with expect_error(TypeError, mentions=[field, key]):
        getattr(L, type_)(**{field: value}).to_proto()


def test_fields_of_forks_are_named_with_the_fork():
    top = L.Lstm(L.Input(shape={"dim": 3}), lstm_param={"num_output": 3})

    with expect_error(AttributeError, mentions=["'lstm_param'", "caffe-lstm"]):
        top.to_proto()


def test_fields_inside_fields_are_named():
    top = L.Convolution(L.Input(shape={"dim": 3}), weight_filler={"typ": "xavier"})

    with expect_error(AttributeError, mentions=["FillerParameter", "'typ'", "'type'"]):
        top.to_proto()

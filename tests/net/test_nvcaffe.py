"""Weights as NVCaffe stores them: half floats, and BatchNorm with other parameters."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import WeightsError
from demitasse.io.proto import BlobProto, NetParameter, parse_text, set_floats, write_binary
from demitasse.io.weights.formats import FORMATS, load_weights, read_weights, write_weights
from demitasse.net import Net

RNG = np.random.default_rng(0)
C = 3
MEAN, VARIANCE = RNG.normal(0, 1, C), RNG.uniform(1, 2, C)
SCALE, BIAS = RNG.uniform(1, 2, C), RNG.normal(0, 1, C)
X = RNG.normal(0, 1, (2, C, 4, 4)).astype(np.float32)


def blob(values, *, raw="", shape=None):
    """A stored parameter; ``raw`` is a numpy type, e.g. "<f2"."""
    values = np.asarray(values, np.float32)
    proto = BlobProto()
    proto.shape.dim.extend(values.shape if shape is None else shape)
    if raw:
        proto.raw_data = values.astype(raw).tobytes()
        proto.raw_data_type = BlobProto.FLOAT16 if raw == "<f2" else BlobProto.FLOAT
    else:
        set_floats(proto, values)
    return proto


def stored(*blobs, kind="BatchNorm"):
    net = NetParameter()
    layer = net.layer.add(name="bn", type=kind)
    layer.blobs.extend(blobs)
    return net


def make(fields="", phase="TEST"):
    text = f"""
        layer {{ type: "Input" name: "in" top: "x"
          input_param {{ shape {{ dim: [2, {C}, 4, 4] }} }} }}
        layer {{ type: "BatchNorm" name: "bn" bottom: "x" top: "y"
          batch_norm_param {{ {fields} }} }}"""
    return Net(parse_text(text, NetParameter), phase, device="numpy")


def output(net):
    return net.predict({"x": X})["y"]


def expected(scale=1.0, bias=0.0):
    def spread(values):
        return np.reshape(values, (-1, 1, 1))

    unit = (X - spread(MEAN)) / np.sqrt(spread(VARIANCE) + 1e-5)
    return unit * spread(scale) + spread(bias)


ORDERS = {
    "0.16": [blob(MEAN), blob(VARIANCE), blob([0]), blob(SCALE), blob(BIAS)],
    "0.16, raw": [blob(v, raw="<f4") for v in (MEAN, VARIANCE, [7], SCALE, BIAS)],
    "0.16, four axes": [
        blob(v, shape=(1, len(v), 1, 1)) for v in (MEAN, VARIANCE, [1], SCALE, BIAS)
    ],
    "Intel": [blob(7 * MEAN), blob(7 * VARIANCE), blob([7]), blob(SCALE), blob(BIAS)],
    "0.15": [blob(SCALE), blob(BIAS), blob(MEAN), blob(VARIANCE), blob([7])],
    "0.15, four axes": [
        blob(v, shape=(1, len(v), 1, 1)) for v in (SCALE, BIAS, MEAN, VARIANCE, [0])
    ],
}


@pytest.mark.parametrize("order", ORDERS)
def test_five_parameters(order):
    net = make("scale_bias: true")

    report = net.load(stored(*ORDERS[order]))

    assert report.loaded == ["bn"]
    np.testing.assert_allclose(output(net), expected(SCALE, BIAS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("storage", ["message", "file"])
def test_saved_statistics_load_as_they_were(storage, tmp_path):
    trained = make("scale_bias: true", phase="TRAIN")
    for _ in range(3):
        trained.forward({"x": X + 2})
    trained.save(tmp_path / "bn.caffemodel")
    net = make("scale_bias: true")

    net.load(trained.to_proto() if storage == "message" else tmp_path / "bn.caffemodel")

    for mine, theirs in zip(net.params["bn"], trained.params["bn"], strict=True):
        np.testing.assert_array_equal(mine.data, theirs.data)


@pytest.mark.parametrize("kind", FORMATS)
def test_statistics_survive_another_format(kind, tmp_path):
    if kind == "h5":
        pytest.importorskip("h5py")
    write_binary(tmp_path / "nv.caffemodel", stored(blob(MEAN), blob(VARIANCE), blob([0])))
    write_weights(tmp_path / f"bn.{kind}", kind, read_weights(tmp_path / "nv.caffemodel"))
    net = make()

    net.load(tmp_path / f"bn.{kind}")

    np.testing.assert_allclose(output(net), expected(), rtol=1e-5, atol=1e-5)


def test_five_parameters_where_scale_and_bias_do_nothing_fit_into_three():
    net = make()

    net.load(stored(blob(MEAN), blob(VARIANCE), blob([1]), blob(np.ones(C)), blob(np.zeros(C))))

    np.testing.assert_allclose(output(net), expected(), rtol=1e-5, atol=1e-5)


def test_five_parameters_that_do_something_are_refused_for_three():
    with expect_error(WeightsError, mentions="scale"):
        make().load(stored(*ORDERS["0.16"]))


@pytest.mark.parametrize("raw", ["", "<f4"])
def test_statistics_that_caffe_would_divide_by_0(raw):
    net = make()

    net.load(stored(blob(MEAN, raw=raw), blob(VARIANCE, raw=raw), blob([0], raw=raw)))

    np.testing.assert_allclose(output(net), expected(), rtol=1e-5, atol=1e-5)


def test_statistics_of_caffe_are_taken_as_they_are():
    net = make()

    net.load(stored(blob(4 * MEAN), blob(4 * VARIANCE), blob([4])))

    assert net.params["bn"][2].data[0] == 4
    np.testing.assert_allclose(output(net), expected(), rtol=1e-5, atol=1e-5)


def test_statistics_without_any_batch_stay_0():
    net = make()

    net.load(stored(blob(np.zeros(C)), blob(np.zeros(C)), blob([0])))

    assert net.params["bn"][2].data[0] == 0


def test_three_parameters_do_not_fit_into_five():
    with expect_error(WeightsError, mentions=["5", "3"]):
        make("scale_bias: true").load(stored(blob(MEAN), blob(VARIANCE), blob([1])))


def test_five_parameters_of_another_size_are_refused():
    with expect_error(WeightsError, mentions="4"):
        make().load(stored(*[blob(np.ones(4))] * 4))


@pytest.mark.parametrize(("raw", "tolerance"), [("<f2", 1e-3), ("<f4", 0)])
def test_raw_bytes(raw, tolerance, tmp_path):
    weight = RNG.normal(0, 1, (2, C)).astype(np.float32)
    net = NetParameter()
    net.layer.add(name="ip", type="InnerProduct").blobs.append(blob(weight, raw=raw))
    write_binary(tmp_path / "nv.caffemodel", net)
    text = f"""
        layer {{ type: "Input" name: "in" top: "x" input_param {{ shape {{ dim: [1, {C}] }} }} }}
        layer {{ type: "InnerProduct" name: "ip" bottom: "x" top: "y"
          inner_product_param {{ num_output: 2 bias_term: false }} }}"""
    mine = Net(parse_text(text, NetParameter), "TEST", device="numpy")

    mine.load(tmp_path / "nv.caffemodel")
    alone = load_weights(tmp_path / "nv.caffemodel")

    np.testing.assert_allclose(mine.params["ip"][0].data, weight, rtol=tolerance, atol=0)
    np.testing.assert_array_equal(alone["ip"][0], mine.params["ip"][0].data)
    assert alone["ip"][0].dtype == np.float32


def test_raw_bytes_that_are_no_floats_name_their_layer(tmp_path):
    net = NetParameter()
    stored = net.layer.add(name="ip", type="InnerProduct").blobs.add()
    stored.shape.dim.append(1)
    stored.raw_data_type, stored.raw_data = 3, b"\1\0\0\0"
    write_binary(tmp_path / "nv.caffemodel", net)

    with expect_error(WeightsError, mentions=["parameter 0 of layer 'ip'", "INT"]):
        load_weights(tmp_path / "nv.caffemodel")

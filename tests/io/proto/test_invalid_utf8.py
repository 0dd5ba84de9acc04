"""Strings that are no UTF-8, as Caffe writes them on a Chinese Windows."""

import pytest

from demitasse import load_weights
from demitasse.io.proto import (
    NetParameter,
    SolverState,
    escape_invalid_utf8,
    read_binary,
    read_net_params_binary,
)

GBK = "数据".encode("gbk")


def with_bytes(message, placeholder, raw):
    """Encode a message in which a string of as many characters stands for bytes."""
    encoded = message.SerializeToString()
    assert encoded.count(placeholder.encode()) >= 1
    assert len(placeholder) == len(raw)
    return encoded.replace(placeholder.encode(), raw)


@pytest.fixture
def model(tmp_path):
    """A caffemodel whose net, data layer and top have names in GBK."""
    net = NetParameter(name="AAAA")
    data = net.layer.add(name="data", type="Data", top=["AAAA", "label"])
    data.data_param.source = "AAAA"
    ip = net.layer.add(name="ip", type="InnerProduct", bottom=["AAAA"], top=["ip"])
    blob = ip.blobs.add(data=[1, 2])
    blob.shape.dim.append(2)
    file = tmp_path / "gbk.caffemodel"
    file.write_bytes(with_bytes(net, "AAAA", GBK))
    return file


def test_they_are_read_with_their_bytes_spelled_out(model):
    net = read_net_params_binary(model)

    spelled = r"\xca\xfd\xbe\xdd"
    assert net.name == net.layer[0].data_param.source == spelled
    assert list(net.layer[0].top) == [spelled, "label"]
    assert list(net.layer[1].bottom) == [spelled]


def test_weights_beside_them_are_read(model):
    assert load_weights(model)["ip"][0].tolist() == [1, 2]


def test_old_nets_are_upgraded(tmp_path):
    old = NetParameter(name="old", input=["AAAA"], input_dim=[1, 1, 2, 2])
    old.layers.add(name="AAAA", type=14, bottom=["AAAA"], blobs_lr=[1], param=["AAAA"])
    file = tmp_path / "old.caffemodel"
    file.write_bytes(with_bytes(old, "AAAA", GBK))

    net = read_net_params_binary(file)

    assert [layer.type for layer in net.layer] == ["Input", "InnerProduct"]
    assert net.layer[1].param[0].name == net.layer[1].name == r"\xca\xfd\xbe\xdd"


def test_states_name_such_files(tmp_path):
    file = tmp_path / "s.solverstate"
    file.write_bytes(with_bytes(SolverState(iter=1, learned_net="AAAA"), "AAAA", GBK))

    assert read_binary(file, SolverState).learned_net == r"\xca\xfd\xbe\xdd"


def test_what_is_utf8_is_left_alone():
    net = NetParameter(name="数据", input=["ä"])

    assert escape_invalid_utf8(net) == 0
    assert (net.name, net.input[0]) == ("数据", "ä")

"""Nets are read from files and from their contents; what is no net is refused."""

import numpy as np
import pytest
from expect_error import expect_error
from opencv_nets import IN_PLACE

from demitasse import cvdnn
from demitasse.errors import DemitasseError, ErrorCode
from demitasse.io.proto import NetParameter

TEXT = """
input: "data" input_shape { dim: 1 dim: 2 }
layer { name: "scale" type: "Scale" bottom: "data" top: "y" }
"""


def caffemodel(name: str = "scale") -> bytes:
    net = NetParameter()
    blob = net.layer.add(name=name, type="Scale").blobs.add(data=[2.0, 3.0])
    blob.shape.dim.append(2)
    return net.SerializeToString()


@pytest.fixture
def files(tmp_path):
    (tmp_path / "net.prototxt").write_text(TEXT)
    (tmp_path / "net.caffemodel").write_bytes(caffemodel())
    return str(tmp_path / "net.prototxt"), str(tmp_path / "net.caffemodel")


def result(net: cvdnn.Net) -> list[list[float]]:
    net.setInput(np.ones((1, 2), np.float32))
    return net.forward().tolist()


def test_a_net_is_read_from_two_files(files):
    text, weights = files

    assert result(cvdnn.readNetFromCaffe(text, weights)) == [[2, 3]]
    assert result(cvdnn.readNetFromCaffe(prototxt=text, caffeModel=weights)) == [[2, 3]]


@pytest.mark.parametrize(
    "kind", [bytes, bytearray, memoryview, lambda encoded: np.frombuffer(encoded, np.uint8)]
)
def test_a_net_is_read_from_contents(kind, files):
    text, weights = kind(TEXT.encode()), kind(caffemodel())

    assert result(cvdnn.readNetFromCaffe(text, weights)) == [[2, 3]]
    assert result(cvdnn.readNetFromCaffe(text, files[1])) == [[2, 3]]
    assert result(cvdnn.readNetFromCaffe(bufferProto=text, bufferModel=weights)) == [[2, 3]]
    assert result(cvdnn.readNet("caffe", weights, text)) == [[2, 3]]
    named = cvdnn.readNet(framework="caffe", bufferModel=weights, bufferConfig=text)
    assert result(named) == [[2, 3]]


def test_the_order_of_files_does_not_matter_to_read_net(files):
    text, weights = files

    for net in (cvdnn.readNet(weights, text), cvdnn.readNet(text, weights, "caffe")):
        assert result(net) == [[2, 3]]
    assert cvdnn.readNet(text).getLayerNames() == ("scale",)


def test_a_net_with_parameters_does_not_run_without_weights(files):
    net = cvdnn.readNetFromCaffe(files[0])

    with expect_error(cvdnn.error, ErrorCode.MISSING, layer="scale"):
        result(net)


def test_a_net_without_parameters_needs_no_weights():
    for net in (
        cvdnn.readNetFromCaffe(IN_PLACE.encode()),
        cvdnn.readNetFromCaffe(IN_PLACE.encode(), None),
    ):
        assert net.getLayerId("relu") == 2


@pytest.mark.parametrize(
    ("text", "weights", "mentions"),
    [
        ("/nowhere.prototxt", "", "/nowhere.prototxt"),
        (TEXT.encode(), "/nowhere.caffemodel", "/nowhere.caffemodel"),
        (b"layer { nam: 3 }", b"", "prototxt buffer:1"),
        (TEXT.encode(), caffemodel()[:-3], "caffeModel buffer"),
        (TEXT.encode(), caffemodel("other"), "scale"),
        (3, "", ["prototxt", "int"]),
        (np.zeros(4), "", ["prototxt", "uint8", "float64"]),
        (b'layer { name: "r" type: "ReLU" bottom: "x" top: "y" }', b"", "'x'"),
        (b'input: "x" input_dim: 1 layer { name: "r" type: "Foo" }', b"", "input_dim"),
        (b'layer { name: "r" type: "Foo" }', b"", "Foo"),
    ],
)
def test_what_is_no_net_is_refused(text, weights, mentions):
    with expect_error(cvdnn.error, mentions=mentions) as caught:
        cvdnn.readNetFromCaffe(text, weights)

    assert caught.value.func == "readNetFromCaffe"
    assert isinstance(caught.value, DemitasseError)


@pytest.mark.parametrize(
    ("arguments", "mentions"),
    [
        (("net.pb", "net.pbtxt"), ["'net.pb'", ".caffemodel"]),
        (("net.caffemodel",), [".caffemodel", ".prototxt"]),
        (("tensorflow", b"", b""), ["'caffe'", "'tensorflow'"]),
        ((b"", "net.prototxt"), "readNet('caffe', bufferModel, bufferConfig)"),
    ],
)
def test_files_of_others_are_refused(arguments, mentions):
    with expect_error(cvdnn.error, mentions=mentions):
        cvdnn.readNet(*arguments)

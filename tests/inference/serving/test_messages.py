"""Requests and answers as the Open Inference Protocol has them, and what is refused."""

import json

import numpy as np
import pytest
from expect_error import expect_error
from hypothesis import given
from hypothesis import strategies as st

from demitasse.errors import DataError, ErrorCode
from demitasse.inference.serving import (
    InferRequest,
    InferResponse,
    Tensor,
    read_request,
    read_response,
    write_request,
    write_response,
)
from demitasse.inference.serving.messages import DTYPES, LENGTH_HEADER

NUMBERS = [name for name in DTYPES if name != "BYTES"]

TENSOR = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3.5, 4]}


def request(**changes):
    entry = {**TENSOR, **changes}
    return json.dumps({"inputs": [{k: v for k, v in entry.items() if v is not None}]}).encode()


def length(headers):
    return int(headers[LENGTH_HEADER]) if LENGTH_HEADER in headers else None


def values_of(datatype):
    if datatype == "BYTES":
        return np.array([[b"a", b""], ["\u00fc".encode(), b"last"]], object)
    return np.array([[0, 1], [1, 0]], DTYPES[datatype])


def test_an_example_of_the_protocol_is_read():
    body = b"""{
      "id": "42",
      "inputs": [
        {"name": "input0", "shape": [2, 2], "datatype": "UINT32", "data": [1, 2, 3, 4]},
        {"name": "input1", "shape": [3], "datatype": "BOOL", "data": [true, false, true]}
      ],
      "outputs": [{"name": "output0"}]
    }"""

    read = read_request(body)

    assert read.id == "42"
    assert read.outputs == {"output0": False}
    assert [tensor.name for tensor in read.inputs] == ["input0", "input1"]
    np.testing.assert_array_equal(read.inputs[0].values, np.array([[1, 2], [3, 4]], np.uint32))
    assert read.inputs[1].values.tolist() == [True, False, True]


def test_an_answer_has_the_fields_of_the_protocol():
    response = InferResponse("net", [Tensor("y", np.array([[0.5, 1]], np.float32))], id="7")

    headers, body = write_response(response)

    assert headers == {"Content-Type": "application/json"}
    assert json.loads(body) == {
        "model_name": "net",
        "model_version": "1",
        "id": "7",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 1.0]}],
    }


def test_values_in_binary_follow_the_json():
    tensors = [Tensor("a", np.array([1, 2], np.int16)), Tensor("b", np.array([b"xyz"], object))]

    headers, body = write_response(InferResponse("net", tensors), {"a": True, "b": True})

    head = json.loads(body[: length(headers)])
    assert headers["Content-Type"] == "application/octet-stream"
    assert [one["parameters"] for one in head["outputs"]] == [
        {"binary_data_size": 4},
        {"binary_data_size": 7},
    ]
    assert body[length(headers) :] == b"\x01\x00\x02\x00" + b"\x03\x00\x00\x00xyz"


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("datatype", list(DTYPES))
def test_every_datatype_comes_back(datatype, binary):
    values = values_of(datatype)
    asked = InferRequest([Tensor("x", values)], {"y": True}, id="1")

    headers, body = write_request(asked, binary=binary)
    read = read_request(body, length(headers))
    headers, body = write_response(InferResponse("net", [Tensor("x", values)]), binary)
    answered = read_response(body, length(headers))

    assert read.outputs == {"y": True}
    for found in (read.inputs[0], answered.outputs[0]):
        assert found.datatype == datatype
        assert found.values.dtype == values.dtype
        assert found.values.tolist() == values.tolist()


def test_lists_may_be_nested_as_the_shape_is():
    read = read_request(request(data=[[1, 2], [3, 4]]))

    assert read.inputs[0].values.tolist() == [[1, 2], [3, 4]]


def test_texts_may_be_coded():
    body = request(
        datatype="BYTES", shape=[1], data=["AAEC"], parameters={"content_type": "base64"}
    )

    assert read_request(body).inputs[0].values.tolist() == [b"\x00\x01\x02"]


def test_outputs_in_binary_may_be_asked_for_all_at_once():
    body = {**json.loads(request()), "parameters": {"binary_data_output": True}}

    read = read_request(json.dumps(body).encode())

    assert read.binary
    assert read.outputs is None


def test_float32_in_json_keeps_its_bits():
    values = np.random.default_rng(0).standard_normal(100).astype(np.float32)

    _, body = write_response(InferResponse("net", [Tensor("y", values)]))

    np.testing.assert_array_equal(read_response(body).outputs[0].values, values)


def test_what_json_has_no_word_for_is_told():
    response = InferResponse("net", [Tensor("y", np.array([1, np.nan], np.float32))])

    with expect_error(DataError, ErrorCode.NOT_FINITE, tensor="y", mentions="binary_data"):
        write_response(response)


def test_an_error_of_the_server_is_told():
    with expect_error(DataError, ErrorCode.FAILED, mentions="no"):
        read_response(b'{"error": "no"}')


@pytest.mark.parametrize(
    ("body", "code", "field", "mentions"),
    [
        (b"", ErrorCode.UNREADABLE, None, ""),
        (b"\xff\xfe", ErrorCode.UNREADABLE, None, ""),
        (b"[]", ErrorCode.INVALID, "the body", ""),
        (b"{}", ErrorCode.MISSING, "inputs", ""),
        (b'{"inputs": 5}', ErrorCode.INVALID, "inputs", "5"),
        (b'{"inputs": []}', ErrorCode.COUNT_MISMATCH, "inputs", "1000"),
        (b'{"inputs": [7]}', ErrorCode.INVALID, "inputs[0]", "7"),
        (b"[" * 200_000, None, None, ""),  # UNREADABLE or LIMIT, by the version of Python
        (b'{"inputs": ' + b"[" * 200_000, None, None, ""),
        (request(name=None), ErrorCode.MISSING, "inputs[0].name", ""),
        (request(name=""), ErrorCode.INVALID, "inputs[0].name", ""),
        (request(name="n" * 2000), ErrorCode.INVALID, "inputs[0].name", "2000"),
        (request(datatype="FP31"), ErrorCode.INVALID, "inputs[0].datatype", ["BOOL", "'FP32'"]),
        (request(datatype=None), ErrorCode.MISSING, "inputs[0].datatype", ""),
        (request(shape=None), ErrorCode.MISSING, "inputs[0].shape", ""),
        (request(shape=[-2, -2]), ErrorCode.INVALID, "inputs[0].shape", "32"),
        (request(shape=[2.0, 2]), ErrorCode.INVALID, "inputs[0].shape", ""),
        (request(shape=[True, 4]), ErrorCode.INVALID, "inputs[0].shape", ""),
        (request(shape=[1] * 33), ErrorCode.INVALID, "inputs[0].shape", ""),
        (request(shape=[1 << 62, 1 << 62]), ErrorCode.COUNT_MISMATCH, "inputs[0]", "2^64"),
        (request(shape=[0, 1 << 62, 1 << 62], data=[]), ErrorCode.LIMIT, "inputs[0].shape", ""),
        (
            request(shape=[1 << 62, 0], data=[], datatype="BYTES"),
            ErrorCode.LIMIT,
            "inputs[0].shape",
            "",
        ),
        (request(parameters={"a": [1]}), ErrorCode.INVALID, "inputs[0].parameters", ""),
        (request(shape=[3, 2]), ErrorCode.COUNT_MISMATCH, "inputs[0]", ["4", "[3, 2]", "6"]),
        (request(data=None), ErrorCode.MISSING, "inputs[0].data", ""),
        (request(data=[1, 2, 3, "4"]), ErrorCode.DTYPE_MISMATCH, "inputs[0].data", "FP32"),
        (request(data=[1, 2, 3, None]), ErrorCode.DTYPE_MISMATCH, "inputs[0].data", ""),
        (request(data=[1, 2, 3, True]), ErrorCode.DTYPE_MISMATCH, "inputs[0].data", ""),
        (request(data=[[1, 2], [3]]), ErrorCode.SHAPE_MISMATCH, "inputs[0].data", ""),
        (request(data=[[1, 2], 3]), ErrorCode.SHAPE_MISMATCH, "inputs[0].data", ""),
        (request(data=[[1, 2, 3, 4]]), ErrorCode.SHAPE_MISMATCH, "inputs[0].data", "[1, 4]"),
        (request(data=[1, 2, 3, 1e39]), ErrorCode.OUT_OF_RANGE, "inputs[0].data", "FP32"),
        (
            request(data=[]).replace(b"[]", b"[1, 2, 3, 1e999]"),
            ErrorCode.OUT_OF_RANGE,
            "inputs[0].data",
            "FP32",
        ),
        (request(data=[1, 2, 3, 10**400]), ErrorCode.OUT_OF_RANGE, "inputs[0].data", "FP32"),
        (
            request(data=[1, 2, 3, 300], datatype="UINT8"),
            ErrorCode.OUT_OF_RANGE,
            "inputs[0].data",
            "UINT8",
        ),
        (
            request(data=[1, 2, 3, -1], datatype="UINT8"),
            ErrorCode.OUT_OF_RANGE,
            "inputs[0].data",
            "UINT8",
        ),
        (
            request(data=[1, 2, 3, 0.5], datatype="INT8"),
            ErrorCode.DTYPE_MISMATCH,
            "inputs[0].data",
            "INT8",
        ),
        (
            request(data=[1, 2, 3, 4], datatype="BYTES"),
            ErrorCode.DTYPE_MISMATCH,
            "inputs[0].data",
            "BYTES",
        ),
        (
            request(data=["\ud800"], shape=[1], datatype="BYTES"),
            ErrorCode.UNREADABLE,
            "inputs[0].data[0]",
            "",
        ),
        (b'{"inputs": [{"name": "x", "data": [NaN]}]}', ErrorCode.UNREADABLE, None, "NaN"),
        (
            b'{"inputs": [{"name": "x", "data": [' + b"1" * 5000 + b"]}]}",
            ErrorCode.UNREADABLE,
            None,
            "",
        ),
        (request(parameters=3), ErrorCode.INVALID, "inputs[0].parameters", "3"),
        (
            request(parameters={"binary_data_size": 4}),
            ErrorCode.CONFLICT,
            "inputs[0]",
            "parameters.binary_data_size",
        ),
        (
            request(data=None, parameters={"binary_data_size": -1}),
            ErrorCode.INVALID,
            "inputs[0].parameters.binary_data_size",
            "-1",
        ),
        (
            request(data=None, parameters={"binary_data_size": 16}),
            ErrorCode.TRUNCATED,
            "inputs[0]",
            ["16", "0"],
        ),
    ],
)
def test_what_is_no_request_is_refused_by_the_name_of_the_field(body, code, field, mentions):
    with expect_error(DataError, code, field=field, mentions=mentions):
        read_request(body)


def test_a_tensor_comes_once():
    with expect_error(DataError, mentions="'x'"):
        read_request(json.dumps({"inputs": [TENSOR, TENSOR]}).encode())


@pytest.mark.parametrize(
    ("size", "behind", "code", "mentions"),
    [
        (16, 20, ErrorCode.INVALID, "4"),
        (20, 20, ErrorCode.SHAPE_MISMATCH, ["20", "[2, 2]", "16"]),
        (16, 12, ErrorCode.TRUNCATED, "12"),
    ],
)
def test_wrong_lengths_in_binary_are_refused(size, behind, code, mentions):
    head = request(data=None, parameters={"binary_data_size": size})

    with expect_error(DataError, code, mentions=mentions):
        read_request(head + bytes(behind), len(head))


@pytest.mark.parametrize("content", [b"\x05\x00\x00\x00ab", b"\x01\x00", b"\xff\xff\xff\xffab"])
def test_texts_that_reach_beyond_their_bytes_are_refused(content):
    size = {"binary_data_size": len(content)}
    head = request(data=None, datatype="BYTES", shape=[1], parameters=size)

    with expect_error(DataError, ErrorCode.TRUNCATED, field="inputs[0]", mentions="element 0"):
        read_request(head + content, len(head))


@pytest.mark.parametrize("said", [-1, 1 << 40])
def test_the_json_is_within_the_body(said):
    with expect_error(DataError, ErrorCode.TRUNCATED, expected=said):
        read_request(request(), said)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(
    field=st.sampled_from(["name", "shape", "datatype", "data", "parameters"]), value=json_values
)
def test_whatever_a_field_is_it_is_read_or_refused(field, value):
    body = json.dumps({"inputs": [{**TENSOR, field: value}]}).encode()

    try:
        [tensor] = read_request(body).inputs
    except DataError:
        return
    assert tensor.values.nbytes < 1000


@given(st.binary(max_size=200), st.integers(0, 250))
def test_whatever_bytes_come_they_are_read_or_refused(body, json_length):
    try:
        read_request(body, json_length)
    except DataError:
        return

"""Messages written piece by piece are, byte for byte, those that protobuf writes."""

import numpy as np
import pytest
from expect_error import expect_error
from hypothesis import given
from hypothesis import strategies as st

from demitasse import Net
from demitasse.errors import ErrorCode, WeightsError
from demitasse.io.proto import (
    BlobProto,
    LayerParameter,
    NetParameter,
    SolverState,
    parse_text,
    set_floats,
    write,
)
from demitasse.io.proto.write import write_pieces
from demitasse.io.proto.zero_copy import blob_pieces, field_pieces, with_field


def blob_of(data, diff=None):
    blob = BlobProto()
    if data.ndim:
        blob.shape.dim.extend(data.shape)
    set_floats(blob, data)
    if diff is not None:
        set_floats(blob, diff, diff=True)
    return blob


@given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    dtype=st.sampled_from(["float32", "float64"]),
    with_diff=st.booleans(),
)
def test_blobs(shape, dtype, with_diff):
    data = np.arange(np.prod(shape, dtype=int), dtype=dtype).reshape(shape)
    diff = -data if with_diff else None

    assert b"".join(blob_pieces(data, diff)) == blob_of(data, diff).SerializeToString()


def test_arrays_are_not_copied():
    data = np.ones(1000, np.float32)

    [_, body, *_] = blob_pieces(data)
    data[0] = 5

    assert np.frombuffer(body, np.float32)[0] == 5


def test_arrays_that_do_not_lie_in_order_are_written_in_order():
    data = np.arange(12, dtype=np.float32).reshape(3, 4).T

    assert b"".join(blob_pieces(data)) == blob_of(data).SerializeToString()


def test_fields_come_in_the_order_of_their_numbers():
    layer = LayerParameter(name="a", type="B", bottom=["x"], loss_weight=[1.0], phase=1)
    layer.param.add(lr_mult=2)
    layer.inner_product_param.num_output = 3
    blobs = [np.ones((2, 3), np.float32), np.zeros(200, np.float32)]

    pieces = with_field(layer, LayerParameter.BLOBS_FIELD_NUMBER, [blob_pieces(b) for b in blobs])

    layer.blobs.extend(map(blob_of, blobs))
    assert b"".join(pieces) == layer.SerializeToString()


def test_unknown_fields_are_kept_behind_the_others():
    unknown = b"\xba\x3e\x03abc"  # field 999
    layer = LayerParameter.FromString(LayerParameter(name="a").SerializeToString() + unknown)
    data = np.ones(2, np.float32)

    pieces = with_field(layer, LayerParameter.BLOBS_FIELD_NUMBER, [blob_pieces(data)])

    layer.blobs.append(blob_of(data))
    assert b"".join(pieces) == layer.SerializeToString()
    assert b"".join(pieces).endswith(unknown)


def test_states():
    state = SolverState(iter=7, learned_net="net", current_step=2)
    state.resume.seed = 9
    arrays = [np.ones((1, 2), np.float64), np.ones((), np.float32)]

    pieces = with_field(
        state, SolverState.HISTORY_FIELD_NUMBER, [blob_pieces(array) for array in arrays]
    )

    state.history.extend(map(blob_of, arrays))
    assert b"".join(pieces) == state.SerializeToString()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("write_diff", [False, True])
def test_nets(tmp_path, dtype, write_diff, backend):
    text = """
    name: "n"
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
    layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" param { name: "w" }
      inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
    layer { name: "again" type: "InnerProduct" bottom: "y" top: "z" param { name: "w" }
      inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
    layer { name: "s" type: "Scale" bottom: "z" top: "z" scale_param { axis: 0 num_axes: 0 } }
    """
    net = Net(parse_text(text, NetParameter), "TRAIN", device=backend, dtype=dtype)
    for blob in net.learnable_params:
        blob.mutable_cpu_diff()[...] = 0.25

    net.save(tmp_path / "n", write_diff)

    assert (tmp_path / "n").read_bytes() == net.to_proto(write_diff).SerializeToString()


def test_what_protobuf_could_not_read_back_is_refused_before_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "LARGEST", 10)
    (tmp_path / "w").write_bytes(b"old")

    with expect_error(WeightsError, ErrorCode.LIMIT, mentions="11"):
        write_pieces(tmp_path / "w", field_pieces(1, [b"123456789"]))

    assert (tmp_path / "w").read_bytes() == b"old"

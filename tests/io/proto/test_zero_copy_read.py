"""Large arrays are read beside their message, and are what protobuf reads."""

import os
import subprocess
import sys

import numpy as np
import pytest
from expect_error import expect_error
from hypothesis import given
from hypothesis import strategies as st
from needs import needs

import demitasse.io.proto.zero_copy as read_module
from demitasse import Net, load_weights
from demitasse.errors import ErrorCode, SnapshotError, WeightsError
from demitasse.io.proto import (
    BlobProto,
    NetParameter,
    SolverState,
    floats,
    parse_text,
    read_net_arrays,
    read_net_params_binary,
    set_floats,
)
from demitasse.io.proto.read_binary import OpenFile
from demitasse.io.proto.wire_format import fields, length_prefix
from demitasse.io.proto.zero_copy import read_message_arrays


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Arrays of 8 bytes are large."""
    monkeypatch.setattr(read_module, "LARGE", 8)


def blob_of(values, dtype="float32", diff=None):
    blob = BlobProto()
    array = np.array(values, dtype)
    blob.shape.dim.extend(array.shape)
    set_floats(blob, array)
    if diff is not None:
        set_floats(blob, np.array(diff, dtype), diff=True)
    return blob


def written(tmp_path, message):
    file = tmp_path / "file"
    content = message if isinstance(message, bytes) else message.SerializeToString()
    file.write_bytes(content)
    return file


def same(file):
    """Read a net in both ways; return whether an array was cut out."""
    whole = read_net_params_binary(file)
    net, arrays = read_net_arrays(file)
    assert [layer.name for layer in net.layer] == [layer.name for layer in whole.layer]
    for mine, theirs in zip(net.layer, whole.layer, strict=True):
        assert len(mine.blobs) == len(theirs.blobs)
        for blob, other in zip(mine.blobs, theirs.blobs, strict=True):
            for diff in (False, True):
                np.testing.assert_array_equal(arrays.floats(blob, diff), floats(other, diff))
                assert arrays.floats(blob, diff).dtype == floats(other, diff).dtype
                assert arrays.count(blob, diff) == floats(other, diff).size
            arrays.restore_arrays(blob)
            assert blob == other
    return bool(arrays._arrays)


def net_of(*blobs):
    net = NetParameter(name="n")
    for index, blob in enumerate(blobs):
        net.layer.add(name=f"l{index}", type="InnerProduct").blobs.append(blob)
    return net


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arrays_are_cut_out(tmp_path, dtype):
    net = net_of(blob_of([1, 2, 3], dtype, [4, 5, 6]), blob_of([[1.5, 2.5]], dtype), blob_of([1]))

    assert same(written(tmp_path, net))


def test_old_layers_are_cut_and_upgraded(tmp_path):
    net = NetParameter(name="old", input=["x"], input_dim=[1, 2, 3, 4])
    net.layers.add(name="a", type=14).blobs.add(num=1, channels=1, height=1, width=4).data.extend(
        [1, 2, 3, 4]
    )

    assert same(written(tmp_path, net))


def test_the_oldest_layers_are_read_too(tmp_path):
    net = NetParameter(name="older")
    blob = net.layers.add().layer
    blob.name, blob.type = "a", "innerproduct"
    blob.blobs.add(num=1, channels=1, height=1, width=4).data.extend([1, 2, 3, 4])

    same(written(tmp_path, net))


def test_raw_values_are_left_to_those_who_know_them(tmp_path):
    blob = BlobProto(raw_data=np.arange(8, dtype="<f2").tobytes(), raw_data_type=BlobProto.FLOAT16)
    blob.shape.dim.append(8)

    assert not same(written(tmp_path, net_of(blob)))


def test_an_array_in_pieces_is_put_together(tmp_path):
    pieces = blob_of([1, 2, 3]).SerializeToString() + blob_of([4, 5, 6]).SerializeToString()
    layer = b"\x0a\x01a" + length_prefix(7, len(pieces)) + pieces
    file = written(tmp_path, length_prefix(100, len(layer)) + layer)

    assert not same(file)
    assert floats(read_net_params_binary(file).layer[0].blobs[0]).tolist() == [1, 2, 3, 4, 5, 6]


def test_values_given_twice_count_as_protobufs_readers_take_them(tmp_path):
    both = (
        blob_of([1, 2, 3]).SerializeToString() + blob_of([9, 8, 7], "float64").SerializeToString()
    )

    same(written(tmp_path, net_of(BlobProto.FromString(both))))


def test_a_mark_cannot_be_forged(tmp_path):
    forged = BlobProto(raw_data=b"0" * 17, raw_data_type=BlobProto.FLOAT)
    net = net_of(forged, blob_of([1, 2, 3]))
    file = written(tmp_path, net)

    message, arrays = read_net_arrays(file)

    with expect_error(WeightsError, ErrorCode.CORRUPT, mentions=["17", "4"], field="raw_data"):
        arrays.floats(message.layer[0].blobs[0])


@given(at=st.integers(0, 200), byte=st.integers(0, 255), keep=st.integers(0, 200))
def test_damaged_files_are_read_as_protobuf_reads_them(tmp_path_factory, at, byte, keep):
    content = bytearray(
        net_of(blob_of([1, 2, 3]), blob_of([[4, 5]], "float64")).SerializeToString()
    )
    content[at % len(content)] = byte
    file = written(tmp_path_factory.mktemp("cut"), bytes(content[: keep or None]))
    try:
        read_net_params_binary(file)
    except Exception as error:
        with pytest.raises(type(error)):
            read_net_arrays(file)
    else:
        same_or_refused(file)


def same_or_refused(file):
    whole = read_net_params_binary(file)
    net, arrays = read_net_arrays(file)
    for mine, theirs in zip(net.layer, whole.layer, strict=True):
        for blob, other in zip(mine.blobs, theirs.blobs, strict=True):
            for diff in (False, True):
                try:
                    wanted = floats(other, diff)
                except WeightsError:
                    with pytest.raises(WeightsError):
                        arrays.floats(blob, diff)
                else:
                    np.testing.assert_array_equal(arrays.floats(blob, diff), wanted)


def test_states_are_cut(tmp_path):
    state = SolverState(iter=3, learned_net="n", current_step=1)
    state.history.append(blob_of([1, 2, 3]))
    state.resume.seed = 4

    message, arrays = read_message_arrays(written(tmp_path, state), SolverState, SnapshotError)

    assert arrays.floats(message.history[0]).tolist() == [1, 2, 3]
    arrays.restore_arrays(message.history[0])
    assert message == state


def test_weights_are_aligned_and_hold_no_file(tmp_path):
    array = load_weights(written(tmp_path, net_of(blob_of([1, 2, 3]))))["l0"][0]

    assert array.flags.aligned
    assert array.flags.owndata
    assert array.flags.writeable


def test_batch_norms_of_nvcaffe_are_converted(tmp_path):
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 dim: 1 dim: 1 } } }
    layer { name: "bn" type: "BatchNorm" bottom: "x" top: "y"
      batch_norm_param { scale_bias: true } }
    """
    stored = NetParameter(name="nv")
    layer = stored.layer.add(name="bn", type="BatchNorm")
    for values in ([1, 2, 3], [4, 5, 6], [0], [8, 9, 10], [11, 12, 13]):
        layer.blobs.append(blob_of(values))
    net = Net(parse_text(text, NetParameter), "TEST", device="numpy")

    net.load(written(tmp_path, stored))

    assert net.params["bn"][0].data.tolist() == [1, 2, 3]
    assert net.params["bn"][2].data.tolist() == [1]
    assert net.params["bn"][4].data.tolist() == [11, 12, 13]


@pytest.mark.parametrize(
    "content", [b"\x0a", b"\x0a\x05ab", b"\x0b\x0c", b"\x00\x00", b"\x08" + b"\xff" * 11, b"\x09ab"]
)
def test_what_is_not_well_formed_is_noticed(content):
    with expect_error(ValueError):
        list(fields(memoryview(content)))


LARGE_NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 300 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y"
  inner_product_param { num_output: 900 weight_filler { type: "xavier" } } }
"""


def large_net(seed):
    return Net(parse_text(LARGE_NET, NetParameter), "TEST", device="numpy", seed=seed)


CHANGES = {
    "cut": lambda path: os.truncate(path, 4096),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: os.truncate(path, path.stat().st_size + 99),
    "other": lambda path: path.write_bytes(b"\xff" * path.stat().st_size),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("when", ["while its fields are read", "while its arrays are read"])
@pytest.mark.parametrize("known", [False, True], ids=["fresh", "with weights"])
def test_a_file_that_changes_while_it_is_read_changes_nothing(
    tmp_path, monkeypatch, change, when, known
):
    path = tmp_path / "w.caffemodel"
    large_net(1).save(path)
    net, same = large_net(2), large_net(2)
    if known:
        net.params["ip"][0].data[0, 0] = same.params["ip"][0].data[0, 0] = 7
        net.params["ip"][1].data[...] = same.params["ip"][1].data[...] = 8
    reads = []
    read = OpenFile.read_into

    def changing(self, first, target):
        read(self, first, target)
        reads.append(first)
        if len(reads) == (1 if "fields" in when else 6):
            CHANGES[change](path)

    monkeypatch.setattr(OpenFile, "read_into", changing)
    with expect_error(WeightsError, mentions="w.caffemodel"):
        net.load(path)
    monkeypatch.undo()

    for mine, theirs in zip(net.params["ip"], same.params["ip"], strict=True):
        np.testing.assert_array_equal(mine.cpu_data(), theirs.cpu_data())


@pytest.mark.parametrize("suffix", [".caffemodel", ".h5", ".npz", ".safetensors"])
def test_loaded_weights_stay_when_the_file_changes(tmp_path, suffix):
    if suffix == ".h5":
        pytest.importorskip("h5py")
    path, net = tmp_path / f"w{suffix}", large_net(2)
    large_net(1).save(path)
    net.load(path)
    read = load_weights(path)

    path.write_bytes(b"\xff" * path.stat().st_size)
    os.truncate(path, 0)

    for mine, theirs, whole in zip(
        net.params["ip"], read["ip"], large_net(1).params["ip"], strict=True
    ):
        np.testing.assert_array_equal(mine.cpu_data(), whole.cpu_data())
        np.testing.assert_array_equal(theirs, whole.cpu_data())


MAPS = """
import sys
from demitasse import Net
net = Net(sys.argv[1], "TEST", device="numpy", seed=1)
net.load(sys.argv[2])
assert sys.argv[2] not in open("/proc/self/maps").read()
peak = [int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")][0]
print(peak)
"""


@needs("/proc")
def test_a_file_goes_to_a_new_net_without_a_second_copy(tmp_path):
    size, peaks = 150 << 20, []
    for count in (1000, 1000 + size // 4 // 1000):
        (tmp_path / "n.prototxt").write_text(
            LARGE_NET.replace("300", "1000").replace("900", str(count))
        )
        net = Net(tmp_path / "n.prototxt", "TEST", device="numpy", seed=1)
        net.save(tmp_path / "w.caffemodel")
        del net
        result = subprocess.run(
            [sys.executable, "-c", MAPS, tmp_path / "n.prototxt", tmp_path / "w.caffemodel"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        peaks.append(int(result.stdout) << 10)

    assert 0.9 * size < peaks[1] - peaks[0] < 1.3 * size

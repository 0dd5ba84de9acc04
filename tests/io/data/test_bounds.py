"""No reader takes more memory than its file can call for, whatever the file claims."""

import struct

import numpy as np
import pytest
from expect_error import expect_error
from needs import needs

from demitasse import load_weights
from demitasse.core.paths import is_file, is_folder, resolve_path
from demitasse.errors import ConfigError, DataError, ErrorCode, WeightsError
from demitasse.io.data.databases.hdf5 import Hdf5File
from demitasse.io.data.databases.mnist import read_idx
from demitasse.io.data.sources.arrays import Hdf5Batches
from demitasse.io.data.sources.source import Batch, ReaderConfig
from demitasse.io.data.transform.mean import read_mean
from demitasse.io.proto import BlobProto, NetParameter


def test_an_idx_file_cannot_hold_more_than_its_bytes(tmp_path):
    (tmp_path / "idx").write_bytes(struct.pack(">HBBI", 0, 8, 1, 2**31 - 1) + b"few")

    with expect_error(DataError, ErrorCode.TRUNCATED, mentions="2147483647"):
        read_idx(tmp_path / "idx")


def test_hdf5_weights_cannot_be_larger_than_their_file(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file.create_dataset("data/ip/0", (10**6, 10**6), "float32")  # never written: no room taken

    with expect_error(WeightsError, ErrorCode.CORRUPT):
        load_weights(tmp_path / "w.h5")


def test_chunks_of_hdf5_cannot_be_larger_than_their_file(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "w.h5", "w") as file:
        many = {"maxshape": (None, None), "chunks": (2**15, 2**14), "compression": "gzip"}
        file.create_dataset("data/ip/0", (3, 9), "float32", **many)  # never written: no room taken

    with expect_error(WeightsError, ErrorCode.CORRUPT, mentions="2147483648"):
        load_weights(tmp_path / "w.h5")


def test_compressed_hdf5_is_read(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file.create_dataset("data/ip/0", data=np.zeros((500, 500), "f4"), compression="gzip")

    assert load_weights(tmp_path / "w.h5")["ip"][0].shape == (500, 500)


def test_hdf5_rows_cannot_be_larger_than_their_file(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file.create_dataset("x", (10**6, 10**6), "float32")

    with expect_error(DataError, ErrorCode.CORRUPT):
        Hdf5File(tmp_path / "rows.h5", ["x"])


def test_a_position_far_away_is_reached_at_once(tmp_path):
    h5py = pytest.importorskip("h5py")
    for name, rows in (("a", [0, 1, 2]), ("b", [3, 4])):
        with h5py.File(tmp_path / name, "w") as file:
            file["x"] = np.array(rows, "float32")
    source = Hdf5Batches(
        [tmp_path / "a", tmp_path / "b"], ["x"], 3, config=ReaderConfig(5 * 10**15 + 1)
    )
    batch = Batch(np.empty, "float32")

    source.fill(batch)
    source.close()

    assert batch.arrays[0].tolist() == [1, 2, 3]


def test_axes_beside_an_empty_one_may_not_be_endless(tmp_path):
    net = NetParameter()
    net.layer.add(name="ip").blobs.add().shape.dim.extend([2**62, 2**62, 0])
    (tmp_path / "w.caffemodel").write_bytes(net.SerializeToString())
    (tmp_path / "idx").write_bytes(struct.pack(">HBB4I", 0, 8, 4, 2**31, 2**31, 2**31, 0))

    with expect_error(WeightsError, ErrorCode.COUNT_MISMATCH, layer="ip", param=0):
        load_weights(tmp_path / "w.caffemodel")
    with expect_error(DataError, ErrorCode.CORRUPT, mentions="idx"):
        read_idx(tmp_path / "idx")


@pytest.mark.parametrize("axes", [33, 5000])
def test_a_blob_has_at_most_32_axes(tmp_path, axes):
    net = NetParameter()
    blob = net.layer.add(name="ip").blobs.add(data=[1.0])
    blob.shape.dim.extend([2**62] * axes)
    (tmp_path / "w.caffemodel").write_bytes(net.SerializeToString())
    (tmp_path / "mean").write_bytes(blob.SerializeToString())

    with expect_error(WeightsError, ErrorCode.LIMIT, mentions=[str(axes), "32"]):
        load_weights(tmp_path / "w.caffemodel")
    with expect_error(DataError, ErrorCode.LIMIT, mentions=str(axes)):
        read_mean(tmp_path / "mean")


def test_a_parameter_has_as_many_values_as_its_shape_says(tmp_path):
    net = NetParameter()
    blob: BlobProto = net.layer.add(name="ip").blobs.add(data=[1.0, 2.0])
    blob.shape.dim.extend([3])
    (tmp_path / "w.caffemodel").write_bytes(net.SerializeToString())

    with expect_error(WeightsError, ErrorCode.COUNT_MISMATCH, layer="ip", param=0, got=2):
        load_weights(tmp_path / "w.caffemodel")


def test_names_that_no_file_can_have(tmp_path):
    with expect_error(ConfigError, ErrorCode.INVALID, mentions="'a\\x00b'"):
        resolve_path("a\0b", tmp_path)


@needs("an error for long names")
def test_names_that_are_too_long(tmp_path):
    with expect_error(ConfigError, ErrorCode.INVALID):
        resolve_path("x" * 5000, tmp_path)
    assert not is_file("x" * 5000)
    assert not is_folder("x" * 5000)

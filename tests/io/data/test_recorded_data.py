"""Databases, means and batches recorded from Caffe."""

import shutil
import tarfile

import numpy as np
import pytest
from google.protobuf import text_format

from demitasse.io.data.databases.database import open_db, records
from demitasse.io.data.databases.datum import datum_to_array
from demitasse.io.data.databases.mnist import read_mnist
from demitasse.io.data.databases.writing import write_database
from demitasse.io.data.sources.collate import DatumMaker
from demitasse.io.data.sources.database import DatabaseBatches
from demitasse.io.data.sources.source import Batch
from demitasse.io.data.transform.mean import compute_mean, read_mean
from demitasse.io.data.transform.transformer import DataTransformer
from demitasse.io.proto import DataParameter, Datum, NetParameter

BATCHES = 3


def contents(path, backend="LMDB"):
    db = open_db(path, backend)
    cursor = db.new_cursor()
    found = [(key, bytes(value)) for key, value in records(cursor)]
    cursor.close()
    db.close()
    return found


@pytest.fixture
def caffe_made(reference_data, tmp_path):
    """A copy of what Caffe's tools made of some images."""
    shutil.copytree(reference_data / "caffe_made", tmp_path / "caffe_made")
    return tmp_path / "caffe_made"


@pytest.fixture
def mnist_test(caffe_made):
    with tarfile.open(caffe_made / "mnist_test_lmdb.tar.gz") as packed:
        # Python before 3.11.4 has no filters, from 3.14 on it has this one by itself
        options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        packed.extractall(caffe_made, **options)
    return caffe_made / "mnist_test_lmdb"


def test_mnist_is_converted_to_the_bytes_that_caffe_writes(reference_data, mnist_test, tmp_path):
    images, labels = read_mnist(reference_data / "data" / "mnist", "test")
    records = zip(images[:, None], labels.tolist(), strict=True)

    write_database(tmp_path / "ours_lmdb", records)

    assert contents(tmp_path / "ours_lmdb") == contents(mnist_test)


def test_the_mean_is_the_one_caffe_computes(caffe_made):
    recorded = caffe_made / "hymen_train_raw64_mean.binaryproto"

    mean = compute_mean(caffe_made / "hymen_train_raw64_lmdb")

    assert mean.SerializeToString() == recorded.read_bytes()


def test_the_mean_of_mnist_is_the_one_caffe_computes(reference_data, tmp_path):
    images, labels = read_mnist(reference_data / "data" / "mnist", "train")
    write_database(tmp_path / "train_lmdb", zip(images[:, None], labels.tolist(), strict=True))

    mean = compute_mean(tmp_path / "train_lmdb")

    recorded = reference_data / "caffe_made" / "mnist_train_mean.binaryproto"
    assert mean.SerializeToString() == recorded.read_bytes()


def test_mean_files_are_read(reference_data):
    assert read_mean(reference_data / "data" / "mnist_mean.binaryproto").shape == (1, 28, 28)


def test_records_are_read_in_caffes_order(mnist_test):
    found = contents(mnist_test)

    assert len(found) == 10_000
    assert [key for key, _ in found] == [b"%08d" % n for n in range(10_000)]
    assert Datum.FromString(found[0][1]).label == 7


def test_a_leveldb_written_by_others_is_read(reference_data):
    recorded = np.load(reference_data / "caffe_made" / "siamese_leveldb_first100.npz")

    found = contents(reference_data / "data" / "mnist_siamese_test_leveldb", "LEVELDB")

    assert len(found) == 10_000
    for i, (key, value) in enumerate(found[:100]):
        datum = Datum.FromString(value)
        assert key == b"%08d" % i
        np.testing.assert_array_equal(datum_to_array(datum), recorded["data"][i])
        assert datum.label == recorded["label"][i]


@pytest.mark.parametrize(
    "case",
    [
        "leveldb_gray",
        "lmdb_deprecated_fields",
        "lmdb_encoded_crop",
        "lmdb_encoded_gray",
        "lmdb_meanfile_crop",
        "lmdb_plain",
        "lmdb_scale_meanvalues",
        "lmdb_wraps_around",
    ],
)
def test_batches_are_those_of_caffe(case, reference_data, caffe_made):
    net = NetParameter()
    text_format.Parse((reference_data / f"goldens_data/{case}.prototxt").read_text(), net)
    recorded = np.load(reference_data / f"goldens_data/{case}.npz")
    param, folder = net.layer[0].data_param, caffe_made.parent
    source = DatabaseBatches(
        folder / param.source,
        DataParameter.DB.Name(param.backend),
        DatumMaker(DataTransformer(net.layer[0].transform_param, "TEST", folder)),
        param.batch_size,
    )
    batch = Batch(np.zeros, "float32")

    for k in range(BATCHES):
        source.fill(batch)

        data, label = recorded[f"top{k}/data"], recorded[f"top{k}/label"]
        np.testing.assert_array_equal(batch.arrays[1], label)
        assert batch.arrays[0].shape[1:] == data.shape[1:]
        got = batch.arrays[0][: len(data)]
        if "encoded" in case:  # another JPEG decoder may round otherwise
            assert np.abs(got - data).mean() < 1
        else:
            np.testing.assert_array_equal(got, data)
    source.close()

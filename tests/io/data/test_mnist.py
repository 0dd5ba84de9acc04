"""MNIST: its idx files and the databases made of them."""

import gzip
import struct

import numpy as np
import pytest

from demitasse.errors import DataError
from demitasse.io.data.databases.database import open_db, records
from demitasse.io.data.databases.mnist import convert, read_idx, read_mnist
from demitasse.io.proto import Datum


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def digits(n, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (n, 28, 28), np.uint8), random.integers(0, 10, n, np.uint8)


@pytest.fixture
def folder(tmp_path):
    """MNIST's four files, as small as can be: 5 training and 3 test digits."""
    for name, n in (("train", 5), ("t10k", 3)):
        images, labels = digits(n, n)
        (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(idx(images))
        (tmp_path / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    return tmp_path


@pytest.mark.parametrize("gzipped", [False, True])
def test_an_idx_file_is_read(tmp_path, gzipped):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "some").write_bytes(gzip.compress(idx(array)) if gzipped else idx(array))

    np.testing.assert_array_equal(read_idx(tmp_path / "some"), array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"\x00\x00\x08", "cannot be read"),
        (b"some text", "not an idx file of unsigned bytes"),
        (struct.pack(">HBBI", 0, 13, 1, 2) + bytes(8), "not an idx file of unsigned bytes"),
        (idx(np.zeros((2, 3), np.uint8))[:-1], r"\(2, 3\) = 6 bytes, but holds 5"),
        (idx(np.zeros((2, 3), np.uint8)) + b"?", "but holds more than that"),
        (struct.pack(">HBB3I", 0, 8, 3, *[2**32 - 1] * 3), "too short for that"),
        (gzip.compress(idx(np.zeros((90, 90), np.uint8)))[:30], "cannot be read"),
    ],
    ids=["empty", "short", "text", "floats", "cut", "longer", "huge", "gzip cut"],
)
def test_what_is_no_idx_file_is_refused(tmp_path, content, message):
    (tmp_path / "bad").write_bytes(content)

    with pytest.raises(DataError, match=rf"bad: .*{message}"):
        read_idx(tmp_path / "bad")


def test_a_split_is_read(folder):
    images, labels = read_mnist(folder, "test")

    want = digits(3, 3)
    np.testing.assert_array_equal(images, want[0])
    np.testing.assert_array_equal(labels, want[1])


def test_both_databases_are_made(folder, tmp_path):
    out = tmp_path / "out"

    made = convert(folder, out)

    assert made == {out / "mnist_train_lmdb": 5, out / "mnist_test_lmdb": 3}
    db = open_db(out / "mnist_train_lmdb")
    cursor = db.new_cursor()
    found = [(key, Datum.FromString(bytes(value))) for key, value in records(cursor)]
    cursor.close()
    db.close()
    images, labels = digits(5, 5)
    assert [key for key, _ in found] == [b"%08d" % n for n in range(5)]
    assert [datum.label for _, datum in found] == labels.tolist()
    assert [datum.data for _, datum in found] == [image.tobytes() for image in images]
    assert {(d.channels, d.height, d.width) for _, d in found} == {(1, 28, 28)}


def test_the_databases_stand_beside_the_files_by_default(folder):
    assert sorted(path.name for path in convert(folder)) == ["mnist_test_lmdb", "mnist_train_lmdb"]
    assert (folder / "mnist_test_lmdb" / "data.mdb").exists()


def test_databases_are_replaced_only_when_told(folder):
    convert(folder)

    with pytest.raises(DataError, match="exists already"):
        convert(folder)

    assert len(convert(folder, overwrite=True)) == 2


def test_a_missing_file_is_named(folder):
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()

    with pytest.raises(
        DataError, match=r"none of t10k-labels-idx1-ubyte, t10k-labels-idx1-ubyte.gz"
    ):
        convert(folder)

    assert not (folder / "mnist_train_lmdb").exists()


def test_files_that_do_not_belong_together_are_refused(folder):
    (folder / "t10k-images-idx3-ubyte").write_bytes(idx(digits(4)[0]))

    with pytest.raises(DataError, match=r"\(4, 28, 28\) images and \(3,\) labels do not belong"):
        read_mnist(folder, "test")

"""MNIST: its idx files and the databases made of them."""

import gzip
import struct

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import DataError, ErrorCode
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
    ("content", "code"),
    [
        (b"", "unreadable"),
        (b"\x00\x00\x08", "unreadable"),
        (b"some text", "unreadable"),
        (struct.pack(">HBBI", 0, 13, 1, 2) + bytes(8), "unreadable"),
        (idx(np.zeros((2, 3), np.uint8))[:-1], "count-mismatch"),
        (idx(np.zeros((2, 3), np.uint8)) + b"?", "count-mismatch"),
        (struct.pack(">HBB3I", 0, 8, 3, *[2**32 - 1] * 3), "truncated"),
        (gzip.compress(idx(np.zeros((90, 90), np.uint8)))[:30], "unreadable"),
    ],
    ids=["empty", "short", "text", "floats", "cut", "longer", "huge", "gzip cut"],
)
def test_what_is_no_idx_file_is_refused(tmp_path, content, code):
    (tmp_path / "bad").write_bytes(content)

    with expect_error(DataError, code, mentions="bad"):
        read_idx(tmp_path / "bad")


def test_a_missing_idx_file_is_not_found(tmp_path):
    with expect_error(DataError, ErrorCode.NOT_FOUND, mentions="none"):
        read_idx(tmp_path / "none")


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

    with expect_error(DataError, ErrorCode.EXISTS):
        convert(folder)

    assert len(convert(folder, overwrite=True)) == 2


def test_a_missing_file_is_named(folder):
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()

    with expect_error(
        DataError,
        ErrorCode.NOT_FOUND,
        mentions=["t10k-labels-idx1-ubyte", "t10k-labels-idx1-ubyte.gz"],
    ):
        convert(folder)

    assert not (folder / "mnist_train_lmdb").exists()


def test_files_that_do_not_belong_together_are_refused(folder):
    (folder / "t10k-images-idx3-ubyte").write_bytes(idx(digits(4)[0]))

    with expect_error(DataError, ErrorCode.COUNT_MISMATCH, mentions=["(4, 28, 28)", "(3,)"]):
        read_mnist(folder, "test")

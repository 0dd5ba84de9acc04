"""The mean of a database, written and read as Caffe does."""

import numpy as np
from expect_error import expect_error

from demitasse.errors import DataError, ErrorCode
from demitasse.io.data.databases.datum import array_to_datum
from demitasse.io.data.databases.writing import write_database, write_records
from demitasse.io.data.transform.mean import compute_mean, read_mean
from demitasse.io.proto import AnnotatedDatum, Datum


def test_the_mean_of_all_records_is_computed(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (9, 3, 4, 5), np.uint8)
    write_database(tmp_path / "some_lmdb", [(p, 0) for p in pixels])

    mean = compute_mean(tmp_path / "some_lmdb")

    assert (mean.num, mean.channels, mean.height, mean.width) == (1, 3, 4, 5)
    np.testing.assert_array_equal(mean.data, pixels.mean(axis=0).astype(np.float32).ravel())


def test_the_mean_of_annotated_images_is_computed(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 5), np.uint8)
    made = [AnnotatedDatum(datum=array_to_datum(p), type=AnnotatedDatum.BBOX) for p in pixels]
    write_records(tmp_path / "some_lmdb", [(b"0", made[0]), (b"1", made[1])])

    mean = compute_mean(tmp_path / "some_lmdb")

    np.testing.assert_array_equal(mean.data, pixels.mean(axis=0).astype(np.float32).ravel())


def test_a_mean_survives_being_written_and_read(tmp_path):
    write_database(tmp_path / "some_lmdb", [(np.full((2, 3, 4), v, np.uint8), 0) for v in (1, 2)])
    (tmp_path / "mean.binaryproto").write_bytes(
        compute_mean(tmp_path / "some_lmdb").SerializeToString()
    )

    mean = read_mean(tmp_path / "mean.binaryproto")

    np.testing.assert_array_equal(mean, np.full((2, 3, 4), 1.5))


def test_records_of_many_sizes_have_no_mean(tmp_path):
    records = [(np.zeros((1, 2, size), np.uint8), 0) for size in (2, 3)]
    write_database(tmp_path / "some_lmdb", records)

    with expect_error(
        DataError, ErrorCode.SHAPE_MISMATCH, mentions=["'00000001'", "some_lmdb", "(1, 2, 3)"]
    ):
        compute_mean(tmp_path / "some_lmdb")


def test_a_damaged_record_is_named(tmp_path):
    write_records(tmp_path / "some_lmdb", [(b"here", Datum(channels=1, data=b"xyz"))])

    with expect_error(DataError, ErrorCode.COUNT_MISMATCH, mentions=["'here'", "some_lmdb", "3"]):
        compute_mean(tmp_path / "some_lmdb")


def test_a_record_that_declares_values_and_has_none_is_damaged(tmp_path):
    write_records(tmp_path / "some_lmdb", [(b"here", Datum(channels=1, height=2, width=3))])

    with expect_error(DataError, ErrorCode.COUNT_MISMATCH, mentions=["'here'", "1 x 2 x 3"]):
        compute_mean(tmp_path / "some_lmdb")


def test_an_empty_database_has_no_mean(tmp_path):
    write_records(tmp_path / "some_lmdb", [])

    with expect_error(DataError, ErrorCode.NOT_FOUND):
        compute_mean(tmp_path / "some_lmdb")

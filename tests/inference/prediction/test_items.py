"""Items of a prediction."""

from contextlib import closing

import numpy as np
from expect_error import expect_error

from demitasse.errors import DataError, ErrorCode
from demitasse.inference.prediction.items import find_items
from demitasse.io.data.databases.database import open_db
from demitasse.io.proto import AnnotatedDatum, Datum


def test_a_single_number_is_no_rows(tmp_path):
    np.save(tmp_path / "one.npy", np.float32(3))

    with expect_error(DataError, ErrorCode.SHAPE_MISMATCH, blob="data"):
        find_items([str(tmp_path / "one.npy")], ["data"])


def test_arrays_may_have_no_rows(tmp_path):
    np.save(tmp_path / "none.npy", np.zeros((0, 3), np.float32))

    assert find_items([str(tmp_path / "none.npy")], ["data"]).names == []


def test_a_record_of_another_kind_is_refused(tmp_path):
    datum = Datum(channels=1, height=1, width=2, data=b"ab")
    with closing(open_db(tmp_path / "db", "LMDB", "new")) as database:
        transaction = database.new_transaction()
        transaction.put(b"0", AnnotatedDatum(datum=datum).SerializeToString())
        transaction.commit()

    with expect_error(DataError, ErrorCode.CORRUPT, mentions="AnnotatedDatum") as refused:
        find_items([str(tmp_path / "db")], ["data"]).pixels(0, "native")

    assert refused.value.source == str(tmp_path / "db")

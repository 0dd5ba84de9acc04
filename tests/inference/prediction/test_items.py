"""Items of a prediction."""

import numpy as np
from expect_error import expect_error

from demitasse.errors import DataError, ErrorCode
from demitasse.inference.prediction.items import find_items


def test_a_single_number_is_no_rows(tmp_path):
    np.save(tmp_path / "one.npy", np.float32(3))

    with expect_error(DataError, ErrorCode.SHAPE_MISMATCH, blob="data"):
        find_items([str(tmp_path / "one.npy")], ["data"])


def test_arrays_may_have_no_rows(tmp_path):
    np.save(tmp_path / "none.npy", np.zeros((0, 3), np.float32))

    assert find_items([str(tmp_path / "none.npy")], ["data"]).names == []

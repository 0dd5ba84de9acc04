"""Checks of blobs that hold indices."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.blob import Blob
from demitasse.core.device import Device
from demitasse.errors import ErrorCode, ShapeError
from demitasse.layers.checks import check_indices
from demitasse.memory import transfers


def indices(values, device="numpy"):
    blob = Blob(np.shape(values), device=device, name="words")
    blob.data = values
    return blob


def test_indices_in_the_range_pass():
    check_indices(indices([0, 4.9, 2, -0.5]), 5, "words")
    check_indices(indices([]), 5, "words")


@pytest.mark.parametrize("wrong", [5, -1, np.inf, np.nan])
def test_others_do_not(wrong):
    with expect_error(ShapeError, ErrorCode.OUT_OF_RANGE, blob="words", mentions=f"{wrong:g}"):
        check_indices(indices([1, wrong, 2]), 5, "words")


def test_indices_on_a_device_are_fetched_only_when_one_may_wait():
    device = Device("strict:device1")
    blob = Blob((2,), device=device, name="words")
    blob.write(device.backend.asarray(np.array([1, 7], "float32")))
    transfers.reset()

    check_indices(blob, 5, "words")

    assert transfers.to_host == 0
    with expect_error(ShapeError, ErrorCode.OUT_OF_RANGE, blob="words", got=7.0, mentions="7"):
        check_indices(blob, 5, "words", wait=True)

"""MemoryData: arrays of the caller."""

import logging

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import ConfigError, DataError, ErrorCode, ShapeError
from demitasse.io.data.databases.datum import array_to_datum
from demitasse.testing import make_layer

SIZES = "batch_size: 2 channels: 1 height: 2 width: 3"
DATA = np.arange(24, dtype="float32").reshape(4, 1, 2, 3)
LABELS = np.array([3, 1, 4, 2], "float32")


def layer(transform="", sizes=SIZES, **options):
    text = f'type: "MemoryData" {transform} memory_data_param {{ {sizes} }}'
    return make_layer(text, dtype="float32", **options)


def test_the_tops_have_their_shapes_before_there_is_data():
    assert [blob.shape for blob in layer().top] == [(2, 1, 2, 3), (2,)]


def test_rows_go_round_and_round(backend):
    one = layer(device=backend)
    one.layer.reset(DATA, LABELS)

    for part in (slice(0, 2), slice(2, 4), slice(0, 2)):
        data, label = one.forward()

        np.testing.assert_array_equal(data, DATA[part])
        np.testing.assert_array_equal(label, LABELS[part])


def test_arrays_of_the_nets_dtype_are_not_copied():
    one = layer(device="numpy")
    data = DATA.copy()
    one.layer.reset(data, LABELS.copy())
    one.forward()

    data[2:] = 99

    assert np.shares_memory(one.top[0].cpu_data(), data)
    np.testing.assert_array_equal(one.forward()[0], np.full((2, 1, 2, 3), 99))


@pytest.mark.parametrize("labels", [LABELS.astype(int), LABELS.reshape(4, 1, 1, 1), [3, 1, 4, 2]])
def test_other_arrays_are_copied(labels):
    one = layer()
    data = DATA.astype("float64")
    data.flags.writeable = False

    one.layer.reset(data, labels)

    got, label = one.forward()
    np.testing.assert_array_equal(got, DATA[:2])
    np.testing.assert_array_equal(label, LABELS[:2])


def test_reset_does_not_transform_and_says_so(caplog):
    one = layer("transform_param { scale: 2 }")

    with caplog.at_level(logging.WARNING):
        one.layer.reset(DATA, LABELS)

    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert one.layer.name in record.message
    np.testing.assert_array_equal(one.forward()[0], DATA[:2])


def test_datums_are_transformed(backend):
    one = layer("transform_param { scale: 2 mean_value: 1 }", device=backend)
    pairs = zip(DATA.astype("uint8"), LABELS, strict=True)
    datums = [array_to_datum(image, int(label)) for image, label in pairs]

    one.layer.add_datum_vector(datums)

    data, label = one.forward()
    np.testing.assert_array_equal(data, (DATA[:2] - 1) * 2)
    np.testing.assert_array_equal(label, LABELS[:2])


def test_images_are_transformed():
    one = layer("transform_param { crop_size: 2 }", "batch_size: 2 channels: 1 height: 2 width: 2")
    images = [np.full((1, 4, 4), k, np.uint8) for k in (5, 6)]

    one.layer.add_mat_vector(images, [1, 2])

    data, label = one.forward()
    np.testing.assert_array_equal(data[:, 0, 0, 0], [5, 6])
    np.testing.assert_array_equal(label, [1, 2])


def test_rows_are_added_when_those_before_are_used():
    one = layer()
    images = list(DATA.astype("uint8"))
    one.layer.add_mat_vector(images, LABELS)

    for _ in range(2):
        with expect_error(DataError, ErrorCode.BAD_STATE):
            one.layer.add_mat_vector(images, LABELS)
        with expect_error(DataError, ErrorCode.BAD_STATE):
            one.layer.set_batch_size(4)
        one.forward()

    one.layer.set_batch_size(4)
    one.layer.add_mat_vector(images[::-1], LABELS)
    np.testing.assert_array_equal(one.forward()[0], DATA[::-1])


def test_the_batch_size_can_be_changed():
    one = layer()
    one.layer.reset(DATA, LABELS)

    one.layer.set_batch_size(4)

    assert one.layer.batch_size == 4
    np.testing.assert_array_equal(one.forward()[0], DATA)
    assert one.top[1].shape == (4,)


# -- what is refused -------------------------------------------------------------------------------


def test_refuses_to_run_without_data():
    with expect_error(DataError, ErrorCode.BAD_STATE):
        layer().forward()


@pytest.mark.parametrize("name", ["batch_size", "channels", "height", "width"])
def test_refuses_a_missing_size(name):
    sizes = {"batch_size": 2, "channels": 1, "height": 2, "width": 3, name: 0}
    fields = " ".join(f"{field}: {size}" for field, size in sizes.items())

    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field=f"memory_data_param.{name}"):
        layer(sizes=fields)


def test_refuses_rows_that_are_not_a_multiple_of_the_batch_size():
    one = layer()

    with expect_error(DataError, mentions=["3", "2"]):
        one.layer.reset(DATA[:3], LABELS[:3])

    one.layer.reset(DATA, LABELS)
    one.layer.set_batch_size(3)
    with expect_error(DataError, mentions=["4", "3"]):
        one.forward()


@pytest.mark.parametrize("data", [DATA[:, 0], DATA[..., :2], DATA[:0]])
def test_refuses_rows_of_another_shape(data):
    with expect_error(ShapeError, mentions="(n, *(1, 2, 3))"):
        layer().layer.reset(data, LABELS[: len(data)])


@pytest.mark.parametrize("labels", [LABELS[:2], LABELS[None], np.zeros((4, 2))])
def test_refuses_another_number_of_labels(labels):
    with expect_error(ShapeError, mentions="4"):
        layer().layer.reset(DATA, labels)

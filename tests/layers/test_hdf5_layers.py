"""HDF5Data and HDF5Output."""

import os

import h5py
import numpy as np
import pytest
from expect_error import expect_error
from needs import needs

from demitasse import Net
from demitasse.errors import ConfigError, DataError, ErrorCode, ShapeError
from demitasse.io.data.databases import hdf5
from demitasse.testing import make_layer

SIZES = {"a.h5": 4, "b.h5": 3, "c.h5": 5}
ALL = sum(SIZES.values())


@pytest.fixture
def folder(tmp_path):
    """BottomKind a.h5, b.h5 and c.h5, whose rows are numbered through, and list.txt."""
    first = 0
    for name, count in SIZES.items():
        write(tmp_path / name, range(first, first + count))
        first += count
    (tmp_path / "list.txt").write_text("\n".join(SIZES) + "\n")
    return tmp_path


def write(path, numbers, **more):
    """Row k has data full of k and the labels k and -k."""
    k = np.array(list(numbers), "float32")
    sets = {"data": k[:, None, None] * np.ones((2, 3), "float32"), "label": np.stack([k, -k], 1)}
    with h5py.File(path, "w") as file:
        for name, values in {**sets, **more}.items():
            file[name] = values


@pytest.fixture
def open_layer(folder):
    opened = []

    def open_layer(fields="", source="list.txt", context=(), more="", **options):
        text = (
            f'type: "HDF5Data" top: "data" top: "label" {more} '
            f'hdf5_data_param {{ source: "{source}" batch_size: 5 {fields} }}'
        )
        one = make_layer(text, base_dir=folder, **options)
        for name, value in dict(context).items():
            setattr(one.layer.context, name, value)
        opened.append(one)
        return one

    yield open_layer
    for one in opened:
        one.layer.close()


def numbers(one, times=1):
    """Run forward and return the numbers of the rows that came, in one list."""
    found = []
    for _ in range(times):
        data, label = one.forward()
        np.testing.assert_array_equal(data, label[:, :1, None] * np.ones((2, 3)))
        np.testing.assert_array_equal(label[:, 0], -label[:, 1])
        found += label[:, 0].astype(int).tolist()
    return found


def test_rows_come_in_order_through_all_files_and_again(open_layer, backend):
    one = open_layer(device=backend)
    assert [blob.shape for blob in one.top] == [(5, 2, 3), (5, 2)]

    assert numbers(one, 6) == [k % ALL for k in range(30)]


def test_one_file_is_read_again_and_again(open_layer, folder):
    (folder / "list.txt").write_text("b.h5")

    assert numbers(open_layer(), 2) == [4 + k % 3 for k in range(10)]


def test_a_file_is_not_held_as_a_whole(open_layer, monkeypatch):
    monkeypatch.setattr(hdf5, "BLOCK", 2 * 4 * (2 * 3 + 2))  # two rows

    assert numbers(open_layer(), 6) == [k % ALL for k in range(30)]


@pytest.mark.parametrize("dtype", ["float64", "int32", "uint8", "bool"])
def test_numbers_of_any_kind_become_the_nets(open_layer, folder, dtype):
    values = np.arange(4).astype(dtype)
    with h5py.File(folder / "a.h5", "w") as file:
        file["data"] = file["label"] = values
    (folder / "list.txt").write_text("a.h5")

    [data, _] = open_layer(dtype="float32").forward()

    assert data.dtype == np.float32
    np.testing.assert_array_equal(data, np.resize(values, 5))


def test_tops_are_found_by_name(folder):
    with h5py.File(folder / "a.h5", "w") as file:
        file["group/inner"] = np.arange(6.0).reshape(3, 2)
    (folder / "list.txt").write_text("a.h5")
    (folder / "net.prototxt").write_text(
        'layer { name: "d" type: "HDF5Data" top: "group/inner" '
        'hdf5_data_param { source: "list.txt" batch_size: 3 } }'
    )
    with Net(folder / "net.prototxt", "TEST") as net:
        net.forward()

        np.testing.assert_array_equal(net.blobs["group/inner"].data, [[0, 1], [2, 3], [4, 5]])


def test_shuffled_every_round_visits_all_files_and_rows_in_another_order(open_layer):
    one = open_layer("shuffle: true")
    visited = numbers(one, ALL)  # five rounds

    rounds = [visited[ALL * k : ALL * (k + 1)] for k in range(5)]

    assert all(sorted(rows) == list(range(ALL)) for rows in rounds)
    assert len({tuple(rows) for rows in rounds}) == 5
    files = {tuple(dict.fromkeys(0 if k < 4 else 1 if k < 7 else 2 for k in r)) for r in rounds}
    assert all(len(order) == 3 for order in files)  # one file after the other
    assert len(files) > 1


@pytest.mark.parametrize("shuffle", ["false", "true"])
@pytest.mark.parametrize("passes", [1, 3, 8])
def test_reading_goes_on_where_a_snapshot_was_taken(open_layer, shuffle, passes):
    one, other = (open_layer(f"shuffle: {shuffle}") for _ in range(2))
    numbers(one, passes)

    other.layer.set_state(one.layer.state())

    assert numbers(other, 5) == numbers(one, 5)


def test_ranks_share_the_rows_in_train_and_not_in_test(open_layer):
    for phase, step in (("TRAIN", 2), ("TEST", 1)):
        one = open_layer(phase=phase, context={"rank": 1, "world_size": 2})

        first = 1 if step == 2 else 0
        assert numbers(one, 3) == [(first + step * k) % ALL for k in range(15)]


@pytest.mark.parametrize("ranks", [2, 3, 11, 30])
def test_ranks_share_the_rows_of_files_that_are_held_in_parts(open_layer, monkeypatch, ranks):
    monkeypatch.setattr(hdf5, "BLOCK", 2 * 4 * (2 * 3 + 2))  # two rows

    one = open_layer(phase="TRAIN", context={"rank": 1, "world_size": ranks})

    assert numbers(one, 4) == [(1 + ranks * k) % ALL for k in range(20)]


def test_refuses_to_transform(open_layer):
    with expect_error(ConfigError, ErrorCode.UNSUPPORTED, field="transform_param"):
        open_layer(more="transform_param { scale: 2 }")


def test_refuses_a_missing_source_or_batch_size():
    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field="hdf5_data_param.batch_size"):
        make_layer('type: "HDF5Data" hdf5_data_param { source: "x" }')
    with expect_error(ConfigError, ErrorCode.MISSING, field="hdf5_data_param.source"):
        make_layer('type: "HDF5Data" hdf5_data_param { batch_size: 1 }')


def test_refuses_a_list_that_is_not_there(open_layer):
    with expect_error(DataError, mentions=["lost.txt", "HDF5"]):
        open_layer(source="lost.txt")


def test_refuses_an_empty_list(open_layer, folder):
    (folder / "list.txt").write_text("\n")

    with expect_error(DataError, mentions="HDF5"):
        open_layer()


def test_names_a_file_that_is_none(open_layer, folder):
    (folder / "a.h5").write_text("not HDF5")

    with expect_error(DataError, mentions=["a.h5", "HDF5"]):
        open_layer()


def test_names_a_file_that_is_not_there_when_it_comes_to_it(open_layer, folder):
    (folder / "list.txt").write_text("a.h5 lost.h5")
    one = open_layer()

    with expect_error(DataError, mentions="lost.h5"):
        one.forward()


def test_names_a_data_set_that_is_not_there(open_layer, folder):
    with h5py.File(folder / "a.h5", "w") as file:
        file["data"], file["other"] = np.zeros(3), np.zeros(3)

    with expect_error(DataError, mentions=["a.h5", "label"]):
        open_layer()


@pytest.mark.parametrize("label", [np.zeros(()), np.array([b"text"] * 4), np.zeros(4, "c8")])
def test_refuses_a_data_set_that_is_not_made_of_rows_of_numbers(open_layer, folder, label):
    write(folder / "a.h5", range(4), label=label)

    with expect_error(DataError, mentions="label"):
        open_layer()


def test_refuses_data_sets_of_different_lengths(open_layer, folder):
    write(folder / "a.h5", range(4), label=np.zeros((3, 2)))

    with expect_error(DataError, mentions=["label", "3", "data", "4"]):
        open_layer()


def test_refuses_data_sets_without_rows(open_layer, folder):
    write(folder / "a.h5", [])

    with expect_error(DataError, mentions="data"):
        open_layer()


def test_refuses_a_file_whose_rows_have_another_shape(open_layer, folder):
    write(folder / "b.h5", range(4), label=np.zeros((4, 7)))
    one = open_layer()

    with expect_error(DataError, mentions=["b.h5", "(7,)", "(2,)"]):
        one.forward()


def test_does_not_quote_a_file_that_is_no_list(open_layer, folder):
    (folder / "list.txt").write_text("root:secret\n")

    with expect_error(DataError, ErrorCode.INVALID, index=1, mentions="list.txt") as caught:
        open_layer()

    assert "secret" not in str(caught.value)


# -- HDF5Output ------------------------------------------------------------------------------------


@pytest.fixture
def writer(tmp_path):
    opened = []

    def writer(*bottoms, **options):
        text = (
            f'type: "HDF5Output" hdf5_output_param {{ file_name: "{tmp_path.as_posix()}/out.h5" }}'
        )
        opened.append(make_layer(text, bottoms, **options))
        return opened[-1]

    yield writer
    for one in opened:
        one.layer.close()


def test_blobs_are_stored_with_four_axes(writer, tmp_path, backend):
    data = np.arange(24.0).reshape(2, 3, 4)
    writer(data, [5.0, 6.0], dtype="float32", device=backend).forward()

    with h5py.File(tmp_path / "out.h5") as file:
        assert set(file) == {"data", "label"}
        assert file["data"].dtype == np.float32
        np.testing.assert_array_equal(file["data"], data[..., None])
        np.testing.assert_array_equal(file["label"], np.reshape([5, 6], (2, 1, 1, 1)))


def test_later_batches_are_appended(writer, tmp_path):
    one = writer(np.ones((2, 3)), [1.0, 2.0])

    one.forward()
    one.forward(np.full((1, 3), 7.0), [3.0])

    with h5py.File(tmp_path / "out.h5") as file:
        np.testing.assert_array_equal(np.squeeze(file["data"]), [[1] * 3, [1] * 3, [7] * 3])
        np.testing.assert_array_equal(np.squeeze(file["label"]), [1, 2, 3])


def test_storing_goes_on_after_the_net_was_closed(writer, tmp_path):
    one = writer(np.ones((2, 3)), [1.0, 2.0])
    one.forward()
    one.layer.close()

    one.forward()
    one.layer.close()

    with h5py.File(tmp_path / "out.h5") as file:
        np.testing.assert_array_equal(np.squeeze(file["label"]), [1, 2, 1, 2])


def test_what_was_stored_can_be_read_back(writer, open_layer, folder):
    one = writer(np.arange(10.0).reshape(5, 2), np.arange(5.0))
    one.forward()
    one.layer.close()
    (folder / "list.txt").write_text("out.h5")

    data, label = open_layer().forward()

    np.testing.assert_array_equal(data.reshape(5, 2), np.arange(10).reshape(5, 2))
    np.testing.assert_array_equal(label.ravel(), np.arange(5))


def test_an_old_file_is_replaced(writer, tmp_path):
    write(tmp_path / "out.h5", range(9), more=np.zeros(3))

    writer(np.ones((2, 3)), [1.0, 2.0]).forward()

    with h5py.File(tmp_path / "out.h5") as file:
        assert {name: one.shape[0] for name, one in file.items()} == {"data": 2, "label": 2}


def test_a_net_that_is_only_made_keeps_an_old_file(writer, tmp_path):
    write(tmp_path / "out.h5", range(9))
    before = (tmp_path / "out.h5").read_bytes()

    writer(np.ones((2, 3)), [1.0, 2.0]).layer.close()

    assert (tmp_path / "out.h5").read_bytes() == before


def test_refuses_an_old_file_that_cannot_be_replaced(writer, tmp_path):
    (tmp_path / "out.h5").mkdir()

    with expect_error(DataError, ErrorCode.UNWRITABLE, mentions="out.h5"):
        writer(np.ones((2, 3)), [1.0, 2.0])


def test_nothing_is_asked_of_the_layers_before(writer):
    one = writer(np.ones((2, 3)), [1.0, 2.0])
    one.forward()

    one.backward(propagate_down=[False, False])


def test_refuses_batches_of_different_sizes(writer):
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="HDF5Output"):
        writer(np.ones((2, 3)), [1.0])


def test_refuses_more_than_four_axes(writer):
    one = writer(np.ones((2, 3)), [1.0, 2.0])

    with expect_error(ShapeError, mentions="4"):
        one.forward(np.ones((2, 3, 1, 1, 1)), [1.0, 2.0])


def test_refuses_rows_of_another_shape(writer):
    one = writer(np.ones((2, 3)), [1.0, 2.0])
    one.forward()

    with expect_error(DataError, mentions=["data", "(3, 1, 1)", "(4, 1, 1)"]):
        one.forward(np.ones((2, 4)), [1.0, 2.0])


def test_refuses_a_missing_file_name():
    with expect_error(ConfigError, ErrorCode.MISSING, field="hdf5_output_param.file_name"):
        make_layer('type: "HDF5Output"', [[1.0], [1.0]])


def test_names_a_file_that_cannot_be_made(tmp_path):
    name = (tmp_path / "lost" / "out.h5").as_posix()

    with expect_error(DataError, mentions="out.h5"):
        make_layer(
            f'type: "HDF5Output" hdf5_output_param {{ file_name: "{name}" }}', [[1.0], [1.0]]
        )


@needs("named pipes")
def test_writes_to_no_pipe_and_no_device(tmp_path):
    os.mkfifo(tmp_path / "pipe.h5")

    with expect_error(DataError, mentions="pipe.h5"):
        make_layer(
            f'type: "HDF5Output" hdf5_output_param {{ file_name: "{tmp_path}/pipe.h5" }}',
            [[1.0], [1.0]],
        )

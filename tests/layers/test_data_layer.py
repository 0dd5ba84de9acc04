"""The Data layer: batches of a database, a place in it that survives, and a clean end."""

import gc
import subprocess
import sys
import threading

import lmdb
import numpy as np
import pytest
from expect_error import expect_error

from demitasse.blob import Blob
from demitasse.core.device import Device
from demitasse.errors import ConfigError, DataError, ErrorCode, NetError, ShapeError
from demitasse.io.data.databases.datum import array_to_datum
from demitasse.io.data.databases.writing import write_database, write_records
from demitasse.io.proto import DataParameter, Datum, LayerParameter, TransformationParameter
from demitasse.layers import LayerContext
from demitasse.layers.data_layers.data import Data
from demitasse.memory import transfers

RECORDS = 7


@pytest.fixture
def folder(tmp_path):
    """BottomKind some_lmdb: record i is an image full of i, with label 10 i."""
    write_database(
        tmp_path / "some_lmdb",
        ((np.full((2, 5, 6), i, np.uint8), 10 * i) for i in range(RECORDS)),
    )
    return tmp_path


class Reading:
    """A Data layer and its tops."""

    def __init__(self, folder, *, phase="TEST", tops=2, device="numpy", seed=1, **fields):
        transform = fields.pop("transform", {})
        context = {k: fields.pop(k) for k in ("rank", "world_size", "dtype") if k in fields}
        data = {"source": "some_lmdb", "batch_size": 3, "backend": DataParameter.LMDB, **fields}
        param = LayerParameter(name="d", type="Data", data_param=DataParameter(**data))
        param.transform_param.CopyFrom(TransformationParameter(**transform))
        context = LayerContext(device=Device(device), base_dir=folder, seed=seed, **context)
        self.layer = Data(param, phase, context)
        dtype = context.dtype
        self.tops = [Blob((), dtype, device, name) for name in ("data", "label")[:tops]]
        self.layer.initialize([], self.tops)

    def forward(self, times=1):
        for _ in range(times):
            self.layer.run_forward([], self.tops)
        return self

    def data(self):
        return np.array(self.tops[0].cpu_data())

    def labels(self):
        return self.tops[1].cpu_data().tolist()


@pytest.fixture
def reading(folder):
    opened = []

    def open_layer(**options):
        opened.append(Reading(options.pop("folder", folder), **options))
        return opened[-1]

    yield open_layer
    for one in opened:
        one.layer.close()


@pytest.fixture
def threads():
    """Return what lists the threads that read ahead for this test, not for one before it."""
    earlier = set(threading.enumerate())

    def threads():
        now = set(threading.enumerate()) - earlier
        return [thread for thread in now if thread.name.startswith("prefetch")]

    return threads


# -- batches -----------------------------------------------------------------------------------


def test_the_tops_have_their_shapes_before_the_first_forward(reading, threads):
    one = reading()

    assert [top.shape for top in one.tops] == [(3, 2, 5, 6), (3,)]
    assert threads() == []  # nothing is read ahead for a net that is only looked at


def test_batches_come_in_order_and_begin_again_after_the_last_record(reading, backend):
    one = reading(device=backend)

    for labels in ([0, 10, 20], [30, 40, 50], [60, 0, 10], [20, 30, 40]):
        one.forward()

        assert one.labels() == labels
        want = np.array(labels).reshape(3, 1, 1, 1) // 10
        np.testing.assert_array_equal(one.data(), np.broadcast_to(want, (3, 2, 5, 6)))


@pytest.mark.parametrize("prefetch", [1, 2, 9])
def test_the_number_of_batches_ahead_changes_nothing(reading, prefetch):
    one = reading(prefetch=prefetch)

    assert [one.forward().labels()[0] for _ in range(5)] == [0, 30, 60, 20, 50]


def test_labels_are_optional(reading):
    one = reading(tops=1)

    assert one.forward().data().max() == 2


def test_a_net_of_doubles_gets_doubles(reading):
    one = reading(dtype="float64", transform={"scale": 0.1})

    one.forward()

    assert one.tops[0].dtype == "float64"
    np.testing.assert_array_equal(
        one.data()[2], np.full((2, 5, 6), 2 * np.float64(np.float32(0.1)))
    )


def test_records_are_transformed(reading):
    one = reading(transform={"crop_size": 4, "mean_value": [1], "scale": 2})

    one.forward()

    assert one.tops[0].shape == (3, 2, 4, 4)
    np.testing.assert_array_equal(one.data()[:, 0, 0, 0], [-2, 0, 2])


def test_a_batch_is_handed_over_without_being_copied(reading):
    one = reading(device="numpy")

    one.forward()

    array = one.layer._current.arrays[0]
    assert np.shares_memory(array, one.tops[0].cpu_data())


def test_a_batch_is_moved_to_the_device_once(reading):
    one = reading(device="strict:device1")
    transfers.reset()

    one.forward()
    one.tops[0].read()
    one.tops[0].read()

    assert transfers.to_device == 2  # data and labels
    assert transfers.to_host == 0


def test_a_batch_takes_the_size_of_its_first_record(reading, tmp_path):
    sizes = [4, 4, 6, 6, 2, 2]
    write_database(tmp_path / "sizes_lmdb", ((np.full((1, s, s), s, np.uint8), s) for s in sizes))
    one = reading(source="sizes_lmdb", batch_size=2)

    shapes = [one.forward().tops[0].shape for _ in range(4)]

    assert shapes == [(2, 1, 4, 4), (2, 1, 6, 6), (2, 1, 2, 2), (2, 1, 4, 4)]
    assert one.data().min() == 4


def test_floats_and_images_can_be_records(reading, tmp_path):
    values = np.linspace(-1, 1, 12, dtype=np.float32).reshape(1, 3, 4)
    write_records(tmp_path / "floats_lmdb", [(b"a", array_to_datum(values, 3))])

    one = reading(source="floats_lmdb", batch_size=2).forward()

    np.testing.assert_array_equal(one.data(), [values, values])
    assert one.labels() == [3, 3]


@pytest.mark.parametrize(
    ("given", "shape"), [([0.5, 1.5, -2.0], (3,)), ([(1, 0), (0.5, 1), (0, 0)], (3, 2))]
)
def test_labels_may_be_numbers_and_several(reading, tmp_path, given, shape):
    pixels = np.zeros((1, 2, 2), np.uint8)
    records = ((b"%d" % i, array_to_datum(pixels, label)) for i, label in enumerate(given))
    write_records(tmp_path / "labels_lmdb", records)

    one = reading(source="labels_lmdb")

    assert one.tops[1].shape == shape
    one.forward(2)
    assert one.tops[1].shape == shape
    np.testing.assert_array_equal(one.labels(), given)


def test_a_record_of_another_number_of_labels_is_named(reading, tmp_path):
    pixels = np.zeros((1, 2, 2), np.uint8)
    records = [(b"%d" % i, array_to_datum(pixels, [0.5] * (2 + i))) for i in range(2)]
    write_records(tmp_path / "labels_lmdb", records)

    with expect_error(DataError, mentions=["1", "3", "2"]):
        reading(source="labels_lmdb").forward()


def test_images_of_many_sizes_fit_by_resizing(reading, tmp_path):
    sizes = [(4, 7), (9, 5), (3, 3)]
    write_database(tmp_path / "sizes_lmdb", ((np.full((3, *s), 9, np.uint8), 1) for s in sizes))

    one = reading(
        source="sizes_lmdb",
        transform={
            "resize_param": {"height": 6, "width": 8, "resize_mode": "FIT_LARGE_SIZE_AND_PAD"},
            "expand_param": {"max_expand_ratio": 2},
            "mean_value": [9],
        },
    ).forward()

    assert one.tops[0].shape == (3, 3, 6, 8)
    assert set(np.unique(one.data())) <= {-9, 0}


def test_augmentation_goes_on_in_a_resumed_run_and_in_ranks(reading, folder):
    transform = {
        "noise_param": {"prob": 0.5, "inverse": True},
        "expand_param": {"prob": 0.5, "max_expand_ratio": 3},
        "resize_param": {"height": 6, "width": 6},
        "mirror": True,
    }
    write_database(
        folder / "images_lmdb",
        (
            (np.random.default_rng(k).integers(0, 256, (3, 5, 6), np.uint8), k)
            for k in range(RECORDS)
        ),
    )
    make = {"transform": transform, "phase": "TRAIN", "source": "images_lmdb"}
    whole, second = reading(batch_size=4, **make), reading(batch_size=4, **make)
    shares = [reading(batch_size=2, rank=rank, world_size=2, **make) for rank in range(2)]
    whole.forward()
    second.layer.set_state(whole.layer.state())
    for one in shares:
        one.forward()

    for _ in range(4):
        want = whole.forward().data()
        np.testing.assert_array_equal(second.forward().data(), want)
        for rank, one in enumerate(shares):
            np.testing.assert_array_equal(one.forward().data(), want[rank::2])


def test_old_files_may_force_colours(reading, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="needs the 'image' extra")
    image.fromarray(np.full((4, 4), 9, np.uint8)).save(tmp_path / "gray.png")
    record = Datum(data=(tmp_path / "gray.png").read_bytes(), encoded=True)
    write_records(tmp_path / "gray_lmdb", [(b"a", record)])

    shapes = [
        reading(source="gray_lmdb", force_encoded_color=forced).tops[0].shape
        for forced in (False, True)
    ]

    assert shapes == [(3, 1, 4, 4), (3, 3, 4, 4)]


def test_the_source_is_looked_for_beside_the_prototxt_and_where_we_are(
    reading, folder, monkeypatch
):
    monkeypatch.chdir(folder)

    assert reading(folder=None).forward().labels() == [0, 10, 20]


def test_several_layers_may_read_one_database(reading):
    train, test = reading(phase="TRAIN"), reading(phase="TEST", batch_size=2)

    train.forward()
    test.forward()
    train.forward()

    assert train.labels() == [30, 40, 50]
    assert test.labels() == [0, 10]


# -- ranks and chance --------------------------------------------------------------------------


def test_the_ranks_share_the_records_of_phase_train(reading):
    shares = [reading(phase="TRAIN", rank=rank, world_size=2, batch_size=2) for rank in (0, 1)]

    assert [one.forward().labels() for one in shares] == [[0, 20], [10, 30]]
    assert [one.forward().labels() for one in shares] == [[40, 60], [50, 0]]
    assert [one.layer.state() for one in shares] == [{"position": 8}] * 2


def test_every_rank_reads_all_records_of_phase_test(reading):
    one = reading(phase="TEST", rank=1, world_size=2)

    assert one.forward().labels() == [0, 10, 20]


AUGMENT = {"crop_size": 3, "mirror": True}


@pytest.fixture
def noise(tmp_path):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (RECORDS, 2, 5, 6), np.uint8)
    write_database(tmp_path / "noise_lmdb", ((p, i) for i, p in enumerate(images)))
    return "noise_lmdb"


def test_augmentation_of_the_ranks_is_that_of_one_process(reading, noise):
    options = {"source": noise, "phase": "TRAIN", "transform": AUGMENT}
    whole = reading(batch_size=4, **options)
    shares = [reading(rank=rank, world_size=2, batch_size=2, **options) for rank in (0, 1)]

    for _ in range(5):
        want = whole.forward().data()
        for rank, one in enumerate(shares):
            np.testing.assert_array_equal(one.forward().data(), want[rank::2])


def test_augmentation_differs_from_round_to_round_and_with_the_seed(reading, noise):
    options = {"source": noise, "phase": "TRAIN", "transform": AUGMENT, "batch_size": RECORDS}
    one, other = reading(**options), reading(seed=2, **options)

    first, second = one.forward().data(), one.forward().data()

    assert (first != second).any()
    assert (other.forward().data() != first).any()


def test_rand_skip_leaves_out_a_few_records_and_says_it_is_deprecated(reading, caplog):
    one = reading(rand_skip=5, seed=3)
    skipped = one.layer.state()["position"]

    assert 0 <= skipped < 5
    assert one.forward().labels()[0] == 10 * skipped
    assert [record.levelname for record in caplog.records if "rand_skip" in record.message]
    positions = {reading(rand_skip=5, seed=seed).layer.state()["position"] for seed in range(40)}
    assert positions == {0, 1, 2, 3, 4}


# -- the place in the data ---------------------------------------------------------------------


def test_the_state_counts_records_the_net_has_used_not_those_read_ahead(reading):
    one = reading(prefetch=4)
    assert one.layer.state() == {"position": 0}

    one.forward(2)

    assert one.layer.state() == {"position": 6}


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("fresh", [True, False], ids=["a new layer", "the same layer"])
def test_a_restored_layer_goes_on_exactly_where_it_was(reading, noise, steps, fresh):
    options = {"source": noise, "phase": "TRAIN", "transform": AUGMENT}
    one = reading(**options).forward(steps)
    state = one.layer.state()
    want = [one.forward().data() for _ in range(4)]

    again = reading(**options) if fresh else one
    again.layer.set_state(state)

    for data in want:
        np.testing.assert_array_equal(again.forward().data(), data)


def test_a_run_may_go_on_with_another_number_of_ranks(reading):
    two = [reading(phase="TRAIN", rank=rank, world_size=2, batch_size=2) for rank in (0, 1)]
    for one in two:
        one.forward()
    alone = reading(phase="TRAIN", batch_size=4)

    alone.layer.set_state(two[0].layer.state())

    assert alone.forward().labels() == [40, 50, 60, 0]


def test_a_state_without_a_place_begins_at_the_first_record(reading):
    one = reading().forward(2)

    one.layer.set_state({})

    assert one.forward().labels() == [0, 10, 20]


# -- threads and files -------------------------------------------------------------------------


def test_closing_stops_the_thread_and_lets_go_of_the_database(reading, folder, threads):
    one = reading().forward()
    assert len(threads()) == 1

    one.layer.close()

    assert threads() == []
    with lmdb.open(str(folder / "some_lmdb"), readonly=True, lock=False):  # or this raises
        pass
    assert one.labels() == [0, 10, 20]  # the last batch stays


def test_a_closed_layer_goes_on_when_it_is_run_again(reading):
    one = reading().forward()

    one.layer.close()
    one.layer.close()

    assert one.forward().labels() == [30, 40, 50]


def test_a_forgotten_layer_stops_its_thread(folder, threads):
    one = Reading(folder).forward()
    (thread,) = threads()

    del one
    gc.collect()

    thread.join(30)
    assert not thread.is_alive()
    with lmdb.open(str(folder / "some_lmdb"), readonly=True, lock=False):
        pass


def test_an_interpreter_that_ends_is_not_held_up(folder):
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
from demitasse.layers import LayerContext
from demitasse.layers.data_layers.data import Data
from demitasse.blob import Blob
from demitasse.core.device import Device
from demitasse.io.proto import LayerParameter
from google.protobuf import text_format
text = 'name: "d" type: "Data" data_param {{ source: "some_lmdb" batch_size: 3 backend: LMDB }}'
param = text_format.Parse(text, LayerParameter())
layer = Data(param, "TEST", LayerContext(device=Device("numpy")))
tops = [Blob(device="numpy"), Blob(device="numpy")]
layer.initialize([], tops)
layer.run_forward([], tops)
print(tops[1].cpu_data().tolist())
"""
    run = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (run.returncode, run.stdout, run.stderr) == (0, "[0.0, 10.0, 20.0]\n", "")


# -- refusals ----------------------------------------------------------------------------------


def test_a_damaged_record_is_named_when_its_batch_is_due(reading, tmp_path):
    good = array_to_datum(np.zeros((1, 2, 2), np.uint8), 1).SerializeToString()
    write_records(tmp_path / "bad_lmdb", ((b"%d" % i, Datum.FromString(good)) for i in range(6)))
    with lmdb.open(str(tmp_path / "bad_lmdb")) as env, env.begin(write=True) as transaction:
        transaction.put(b"4", good[:7])
    one = reading(source="bad_lmdb", batch_size=3)

    one.forward()  # the first batch is good

    for _ in range(2):
        with expect_error(DataError, mentions="bad_lmdb") as caught:
            one.forward()
        assert (caught.value.source, caught.value.key) == (str(tmp_path / "bad_lmdb"), "4")


def test_a_record_that_does_not_fit_its_batch_is_named(reading, tmp_path):
    sizes = [4, 4, 4, 6, 4, 4]
    write_database(tmp_path / "sizes_lmdb", ((np.zeros((1, s, s), np.uint8), s) for s in sizes))
    one = reading(source="sizes_lmdb", batch_size=2).forward()

    with expect_error(DataError, mentions=["sizes_lmdb", "00000003", "(1, 6, 6)", "(1, 4, 4)"]):
        one.forward()


def test_a_record_smaller_than_the_crop_is_named(reading):
    with expect_error(DataError, mentions=["some_lmdb", "00000000", "crop_size", "9"]):
        reading(transform={"crop_size": 9})


@pytest.mark.parametrize(
    ("fields", "error", "code", "mentions"),
    [
        ({"source": ""}, ConfigError, ErrorCode.MISSING, "data_param.source"),
        ({"batch_size": 0}, ConfigError, ErrorCode.OUT_OF_RANGE, "batch_size"),
        ({"prefetch": 0}, ConfigError, ErrorCode.OUT_OF_RANGE, "prefetch"),
        ({"source": "none_lmdb"}, DataError, None, "none_lmdb"),
        (
            {"transform": {"mean_file": "m", "mean_value": [1]}},
            ConfigError,
            None,
            ["mean_file", "mean_value"],
        ),
        ({"transform": {"mean_file": "none"}}, DataError, None, "none"),
        ({"transform": {"mean_value": [1, 2, 3]}}, DataError, None, ["3", "2"]),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_refused_in_setup(reading, fields, error, code, mentions):
    with expect_error(error, code, mentions=mentions):
        reading(**fields)


def test_the_numbers_of_blobs_are_checked(folder):
    layer = Data(LayerParameter(type="Data"), "TEST", LayerContext(device=Device("numpy")))

    with expect_error(NetError, ErrorCode.COUNT_MISMATCH, blobs="tops", got=3, mentions=["1", "2"]):
        layer.initialize([], [Blob(), Blob(), Blob()])
    with expect_error(NetError, ErrorCode.COUNT_MISMATCH, blobs="bottoms", got=1):
        layer.initialize([Blob()], [Blob()])


def test_forcing_both_kinds_of_channels_is_refused(reading):
    with expect_error((ConfigError, ShapeError), mentions=["force_color", "force_gray"]):
        reading(transform={"force_color": True, "force_gray": True})


def test_naming_a_record_leaves_the_threads_of_the_reader_alone(reading, monkeypatch):
    layer = reading().forward().layer
    closed = []
    monkeypatch.setattr(layer.transformer, "close", lambda: closed.append(True))

    source, key = layer.record_of(1)

    assert (source.rpartition("/")[2], key, closed) == ("some_lmdb", "00000001", [])

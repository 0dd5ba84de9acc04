"""``test_iter: 0``: a test reads every record exactly once."""

import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from expect_error import expect_error

from demitasse import Net, Solver
from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.data.databases.database import open_db, records
from demitasse.io.data.databases.writing import write_database
from demitasse.io.proto import parse_text, upgrade_net
from demitasse.io.proto.caffe_pb2 import NetParameter
from demitasse.training import Epoch, mean_outputs

COUNT, BATCH = 11, 4

LAYERS = """
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "y" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "y" top: "accuracy"
  include { phase: TEST } }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same 11 images as LMDB, HDF5 files of 4, 1 and 6, and a list."""
    h5py = pytest.importorskip("h5py")
    folder = tmp_path_factory.mktemp("records")
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (COUNT, 1, 6, 6), np.uint8)
    labels = rng.integers(0, 3, COUNT)
    write_database(folder / "lmdb", zip(images, labels.tolist(), strict=True))
    lines, files, first = [], [], 0
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        PIL.Image.fromarray(image[0]).save(folder / f"{index}.png")
        lines.append(f"{folder}/{index}.png {label}")
    for count in (4, 1, 6):
        files.append(str(folder / f"{count}.h5"))
        with h5py.File(files[-1], "w") as file:
            file["x"] = images[first : first + count].astype("float32")
            file["y"] = labels[first : first + count].astype("float32")
        first += count
    (folder / "list.txt").write_text("\n".join(lines) + "\n")
    (folder / "files.txt").write_text("\n".join(files) + "\n")
    return folder


SOURCES = {
    "lmdb": 'type: "Data" data_param { source: "DIR/lmdb" backend: LMDB batch_size: SIZE }',
    "list": 'type: "ImageData" image_data_param { source: "DIR/list.txt" batch_size: SIZE '
    "is_color: false }",
    "shuffled list": 'type: "ImageData" image_data_param { source: "DIR/list.txt" batch_size: SIZE '
    "is_color: false shuffle: true }",
    "hdf5": 'type: "HDF5Data" hdf5_data_param { source: "DIR/files.txt" batch_size: SIZE }',
    "shuffled hdf5": 'type: "HDF5Data" hdf5_data_param { source: "DIR/files.txt" batch_size: SIZE '
    "shuffle: true }",
}
IN_ORDER = [source for source in SOURCES if "shuffled" not in source]


def net_text(folder, source, size=BATCH, layers=LAYERS):
    data = SOURCES[source].replace("DIR", folder.as_posix()).replace("SIZE", str(size))
    return f'layer {{ name: "data" top: "x" top: "y" {data} }} {layers}'


def net_of(text, device="cpu", seed=5):
    message = parse_text(text, NetParameter)
    upgrade_net(message)
    return Net(message, "TEST", device=device, seed=seed)


@pytest.mark.parametrize("source", SOURCES)
def test_an_epoch_is_what_one_great_batch_is(folder, source, backend):
    with (
        net_of(net_text(folder, source, COUNT), backend) as whole,
        net_of(net_text(folder, source), backend) as parts,
    ):
        wanted, wanted_loss = mean_outputs(whole, 1)
        means, loss = mean_outputs(parts, 0)

    assert means["accuracy"] == pytest.approx(wanted["accuracy"], rel=1e-6)
    assert means["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
    assert loss == pytest.approx(wanted_loss, rel=1e-5)


@pytest.mark.parametrize("source", IN_ORDER)
@pytest.mark.parametrize(("size", "sizes"), [(4, [4, 4, 3]), (11, [11]), (20, [11]), (1, [1] * 11)])
def test_the_last_batch_holds_what_is_left(folder, source, size, sizes):
    with net_of(net_text(folder, source, size)) as net:
        epoch = Epoch(net)
        for _ in range(2):
            assert [records for records, _ in epoch.batches()] == sizes


@pytest.mark.parametrize("source", IN_ORDER)
def test_every_epoch_reads_the_same_records(folder, source):
    with net_of(net_text(folder, source)) as net:
        seen = [[net.blobs["y"].data.copy() for _ in Epoch(net).batches()] for _ in range(3)]

    first = np.concatenate(seen[0])
    assert len(first) == COUNT
    for again in seen[1:]:
        np.testing.assert_array_equal(np.concatenate(again), first)


@pytest.mark.parametrize("source", SOURCES)
def test_an_epoch_begins_at_the_beginning_wherever_the_net_is(folder, source):
    with net_of(net_text(folder, source)) as net, net_of(net_text(folder, source)) as fresh:
        net.forward()  # records 0 to 3
        wanted = [label for _ in Epoch(fresh).batches() for label in fresh.blobs["y"].data.tolist()]

        got = [label for _ in Epoch(net).batches() for label in net.blobs["y"].data.tolist()]

    assert sorted(got) == sorted(wanted)


def test_what_has_a_number_for_each_record_is_left_out(folder, lines):
    text = net_text(folder, "lmdb")
    more = 'layer { name: "p" type: "Softmax" bottom: "ip" top: "p" }'
    with net_of(text + more) as net:
        means, _ = mean_outputs(net, 0)

    assert sorted(means) == ["accuracy", "loss"]
    assert any("'p' changed from (4, 3) to (3, 3)" in line for line in lines())


def test_negative_number_of_batches_is_refused(folder):
    with (
        net_of(net_text(folder, "lmdb")) as net,
        expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field="batches", got=-1),
    ):
        mean_outputs(net, -1)


def test_two_layers_that_agree_have_a_common_epoch(folder):
    second = SOURCES["hdf5"].replace("DIR", folder.as_posix()).replace("SIZE", str(BATCH))
    lmdb = SOURCES["lmdb"].replace("DIR", folder.as_posix()).replace("SIZE", str(BATCH))
    text = f"""
    layer {{ name: "a" top: "images" top: "labels" {lmdb} }}
    layer {{ name: "b" top: "x" top: "y" {second} }}
    """
    with net_of(text) as net:
        for records, _ in Epoch(net).batches():
            assert records in {4, 3}
            np.testing.assert_array_equal(net.blobs["images"].data, net.blobs["x"].data)


def test_layers_that_do_not_agree_are_refused(folder):
    second = SOURCES["hdf5"].replace("DIR", folder.as_posix()).replace("SIZE", "5")
    lmdb = SOURCES["lmdb"].replace("DIR", folder.as_posix()).replace("SIZE", "4")
    text = f"""
    layer {{ name: "a" top: "images" top: "labels" {lmdb} }}
    layer {{ name: "b" top: "x" top: "y" {second} }}
    """
    counts = ["'a' 4", "'b' 5"]
    with net_of(text) as net, expect_error(ConfigError, mentions=counts, layers=["a", "b"]):
        list(Epoch(net).batches())


def test_caffes_leveldb_has_an_epoch(reference_data, tmp_path):
    copy = shutil.copytree(
        reference_data / "caffe_made" / "hymen_train_gray32_leveldb", tmp_path / "db"
    )
    with closing(open_db(copy, "LEVELDB")) as db, closing(db.new_cursor()) as cursor:
        count = sum(1 for _ in records(cursor))
    data = f'type: "Data" data_param {{ source: "{Path(copy).as_posix()}" batch_size: 32 }}'

    with net_of(f'layer {{ name: "data" top: "x" top: "y" {data} }}') as net:
        sizes = [size for size, _ in Epoch(net).batches()]

    assert sum(sizes) == count
    assert set(sizes[:-1]) == {32}


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        ('type: "DummyData" dummy_data_param { shape { dim: 1 } }', None),
        (
            'type: "MemoryData" memory_data_param { batch_size: 1 channels: 1 height: 1 width: 1 }',
            "data",
        ),
    ],
)
def test_data_without_an_end_is_refused(layer, name):
    tops = 'top: "x"' if "Dummy" in layer else 'top: "x" top: "y"'

    with expect_error(ConfigError, ErrorCode.UNSUPPORTED, layer=name):
        Epoch(net_of(f'layer {{ name: "data" {tops} {layer} }}'))


# -- in a solver -------------------------------------------------------------------------------


@pytest.fixture
def made(fields, folder):
    """Make solvers that test with every record."""
    solvers = []

    def make(source="lmdb", text="test_iter: 0 test_interval: 2", **options):
        solvers.append(Solver(fields(text, net=net_text(folder, source)), **options))
        return solvers[-1]

    yield make
    for solver in solvers:
        solver.close()


def test_a_solver_tests_with_every_record(made, folder, lines, backend):
    solver = made(device=backend)
    solver.step(3)

    [means] = solver.test_all()

    with net_of(net_text(folder, "lmdb", COUNT), backend) as whole:
        whole.share_trained_layers_with(solver.net)
        wanted, _ = mean_outputs(whole, 1)
    assert means["accuracy"] == pytest.approx(wanted["accuracy"], rel=1e-6)
    assert means["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
    assert any("Test net output #0: accuracy = " in line for line in lines())


@pytest.mark.parametrize("source", ["lmdb", "shuffled hdf5", "shuffled list"])
def test_whole_epochs_resume_exactly(made, tmp_path, source, backend):
    whole, first, second = (made(source, device=backend) for _ in range(3))
    seen = {solver: [] for solver in (whole, first, second)}
    for solver, results in seen.items():
        solver.on_test.append(lambda _index, means, results=results: results.append(means))

    whole.step(8)
    first.step(5)
    second.restore(first.snapshot(tmp_path / "s")[1])
    second.step(3)

    assert seen[first] + seen[second] == seen[whole]
    assert len(seen[whole]) == 4


def test_a_test_that_was_interrupted_is_done_again_from_its_beginning(made, tmp_path):
    whole, first, second = made(), made(), made()
    results = []
    for solver in (whole, second):
        solver.on_test.append(lambda _index, means: results.append(means))
    net = first.test_nets[0]
    net.after_forward.append(lambda i: i == 0 and first.iter == 2 and first.request("stop"))

    whole.step(3)
    first.step(3)
    second.restore(first.snapshot(tmp_path / "s")[1])
    second.step(1)

    assert (first.iter, first.stopped) == (2, True)
    assert results[-1] == results[1]


def test_an_epoch_after_a_run_that_counted_batches_is_a_whole_one(made, tmp_path):
    counted = made(text="test_iter: 2 test_interval: 2")
    counted.step(3)
    _, state = counted.snapshot(tmp_path / "s")
    assert counted.test_nets[0].layers[0].state() == {"position": 16}
    solver = made()

    solver.restore(state)
    [means] = solver.test_all()

    fresh = made()
    fresh.net.load(counted.net.to_proto())
    assert means == fresh.test_all()[0]

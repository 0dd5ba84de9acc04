"""The files we write are the files Caffe writes: field by field, where possible byte by byte."""

from pathlib import Path

import numpy as np
import pytest
from goldens import GOLDENS
from google.protobuf.descriptor import FieldDescriptor

from demitasse import Net, Solver
from demitasse.io.data.databases.writing import write_database
from demitasse.io.data.transform.mean import compute_mean
from demitasse.io.proto import (
    BlobProto,
    NetParameter,
    SolverParameter,
    SolverState,
    read_text,
    write_binary,
)

SOLVERS = GOLDENS / "solvers"
NAMES = sorted(file.name.split(".")[0] for file in SOLVERS.glob("*.solver.prototxt"))
BINARY = [name for name in NAMES if (SOLVERS / f"{name}_iter_6.solverstate").exists()]

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


def fields(content, descriptor, path=""):
    """Return every field of an encoded message in order.

    Each is (path, number, wire type, contents); of a message the contents are those of its fields,
    which follow, and of an array of numbers its length.
    """
    found, at = [], 0
    while at < len(content):
        tag, at = varint(content, at)
        number, kind = tag >> 3, tag & 7
        field = descriptor.fields_by_number[number]
        place = f"{path}/{field.name}"
        if kind == VARINT:
            value, at = varint(content, at)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
            value, at = content[at : at + size], at + size
        else:
            assert kind == LENGTH
            length, at = varint(content, at)
            value, at = content[at : at + length], at + length
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            found.append((place, number, kind, "message"))
            found += fields(value, field.message_type, place)
        elif field.type == FieldDescriptor.TYPE_FLOAT and kind == LENGTH:
            found.append((place, number, kind, f"to_fp16, {len(value)} bytes"))
        else:
            found.append((place, number, kind, value))
    return found


def varint(content, at):
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def snapshot(name, folder, device, iteration=6):
    """Restore Caffe's snapshot and write it again, under the names that Caffe gave it."""
    param = read_text(SOLVERS / f"{name}.solver.prototxt", SolverParameter)
    param.net, param.snapshot_prefix = str(SOLVERS / f"{name}.net.prototxt"), name
    solver = Solver(param, device=device)
    [state] = SOLVERS.glob(f"{name}_iter_{iteration}.solverstate*")
    solver.restore(state)
    return solver.snapshot()


@pytest.mark.parametrize("name", BINARY)
def test_a_caffemodel_is_caffes_byte_for_byte(name, tmp_path, monkeypatch, backend):
    monkeypatch.chdir(tmp_path)

    weights, _ = snapshot(name, tmp_path, backend)

    ours, theirs = weights.read_bytes(), (SOLVERS / weights.name).read_bytes()
    assert fields(ours, NetParameter.DESCRIPTOR) == fields(theirs, NetParameter.DESCRIPTOR)
    assert ours == theirs


@pytest.mark.parametrize("name", BINARY)
def test_a_solverstate_is_caffes_with_one_field_behind_it(name, tmp_path, monkeypatch, backend):
    monkeypatch.chdir(tmp_path)

    _, state = snapshot(name, tmp_path, backend)

    ours, theirs = state.read_bytes(), (SOLVERS / state.name).read_bytes()
    assert ours.startswith(theirs)
    [(place, number, kind, _), *_] = fields(ours[len(theirs) :], SolverState.DESCRIPTOR)
    assert (place, number, kind) == ("/resume", 5000, LENGTH)


def test_hdf5_files_have_caffes_names_types_and_shapes(tmp_path, monkeypatch):
    h5py = pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)

    def layout(file):
        found = {}
        with h5py.File(file) as opened:
            opened.visititems(lambda path, item: found.__setitem__(path, described(item)))
        return found

    def described(item):
        if not hasattr(item, "dtype"):
            return "group"
        kind = item.id.get_type()
        return (
            item.shape,
            kind.get_class(),
            kind.get_size(),
            item.id.get_create_plist().get_layout(),
        )

    for file in snapshot("hdf5_snapshot", tmp_path, "numpy"):
        ours, theirs = layout(file), layout(SOLVERS / file.name)
        ours.pop("demitasse_resume", None)
        assert ours == theirs
        with h5py.File(file) as one, h5py.File(SOLVERS / file.name) as other:
            for path, what in ours.items():
                if what != "group":
                    np.testing.assert_array_equal(one[path][()], other[path][()], path)


# -- what Caffe's own tools made ----------------------------------------------------------------


@pytest.fixture
def lenet_folder(tmp_path, monkeypatch):
    """A working directory as Caffe's was: the databases are at examples/mnist."""
    folder = tmp_path / "examples" / "mnist"
    folder.mkdir(parents=True)
    for name in ("mnist_train_lmdb", "mnist_test_lmdb"):
        write_database(folder / name, [(np.zeros((1, 28, 28), np.uint8), 0)] * 2)
    monkeypatch.chdir(tmp_path)
    return folder


def test_lenets_caffemodel_is_caffes_byte_for_byte(reference_data, lenet_folder):
    made = reference_data / "caffe_made" / "lenet_iter_5100.caffemodel"
    model = reference_data / "models" / "lenet_mnist_v1" / "lenet_train_test.prototxt"
    net = Net(model, "TRAIN", weights=made)

    net.save("ours.caffemodel")
    net.close()

    ours, theirs = Path("ours.caffemodel").read_bytes(), made.read_bytes()
    assert fields(ours, NetParameter.DESCRIPTOR) == fields(theirs, NetParameter.DESCRIPTOR)
    assert ours == theirs


def test_lenets_solverstate_has_caffes_fields(reference_data, lenet_folder):
    made = reference_data / "caffe_made"
    param = read_text(made / "lenet_solver_cpu.prototxt", SolverParameter)
    param.net = str(reference_data / "models" / "lenet_mnist_v1" / "lenet_train_test.prototxt")
    with Solver(param) as solver:
        solver.restore(made / "lenet_iter_5100.solverstate")
        _, file = solver.snapshot()

    ours = fields(file.read_bytes(), SolverState.DESCRIPTOR)
    theirs = fields((made / "lenet_iter_5100.solverstate").read_bytes(), SolverState.DESCRIPTOR)
    ours = ours[: [place for place, *_ in ours].index("/resume")]
    # Caffe went on from a state of 2014 and kept its four axes: 1 1 1 20, where a parameter has 20.
    assert [one[:3] for one in ours] == [one[:3] for one in theirs]
    for (place, _, _, mine), (*_, other) in zip(ours, theirs, strict=True):
        if place == "/history/shape/dim":
            assert other.lstrip(b"\x01") == mine.lstrip(b"\x01")
        else:
            assert mine == other


@pytest.mark.parametrize("name", ["hymen_train_raw64"])
def test_a_mean_has_caffes_fields_and_values(reference_data, tmp_path, name):
    import shutil

    made = reference_data / "caffe_made"
    database = shutil.copytree(made / f"{name}_lmdb", tmp_path / "db")

    write_binary(tmp_path / "mean", compute_mean(database))

    ours, theirs = (
        (tmp_path / "mean").read_bytes(),
        (made / f"{name}_mean.binaryproto").read_bytes(),
    )
    assert fields(ours, BlobProto.DESCRIPTOR) == fields(theirs, BlobProto.DESCRIPTOR)
    mine, other = (np.array(BlobProto.FromString(file).data) for file in (ours, theirs))
    np.testing.assert_allclose(mine, other, rtol=1e-6)

"""The readers of untrusted files, each with some files to damage and a call that reads one.

A call may raise DemitasseError and nothing else, and then must have changed nothing.
"""

import gzip
import io
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import PIL.Image
from file_readers import file_readers
from reader import Call, Reader, nothing_changes, put

import demitasse.io.proto.zero_copy as read_module
from demitasse import Net, Solver, load_weights
from demitasse.errors import DataError, DemitasseError
from demitasse.io.data.databases._leveldb_files import unsnap
from demitasse.io.data.databases.database import open_db, records
from demitasse.io.data.databases.datum import array_to_datum
from demitasse.io.data.databases.hdf5 import Hdf5File
from demitasse.io.data.databases.mnist import read_idx
from demitasse.io.data.sources.collate import RecordCollator
from demitasse.io.data.sources.image_list import read_image_list
from demitasse.io.data.sources.windows import read_window_file
from demitasse.io.data.transform.mean import read_mean
from demitasse.io.proto import (
    BlobProto,
    Datum,
    NetParameter,
    SolverParameter,
    SolverState,
    parse_text,
    read_binary,
    read_net_params,
    read_solver_params,
    set_floats,
)
from demitasse.lint import lint

LAYERS = """
layer { name: "data" type: "DummyData" top: "x" top: "y"
  dummy_data_param { shape { dim: 2 dim: 6 } shape { dim: 2 }
  data_filler { type: "gaussian" } data_filler { value: 1 } } }
layer { name: "ip1" type: "InnerProduct" bottom: "x" top: "ip1"
  param { lr_mult: 1 decay_mult: 1 } param { name: "b" lr_mult: 2 decay_mult: 0 }
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "drop/1" type: "Dropout" bottom: "ip1" top: "ip1"
  dropout_param { dropout_ratio: 0.25 } }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" std: 1.5e-2 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "y" top: "loss" }
"""
NET = f"""
name: "fuzzed" input: "in" input_dim: 1 input_dim: 2 input_dim: 3 input_dim: 3
{LAYERS}
layer {{ name: "s" type: "Silence" bottom: "in" include {{ phase: TEST stage: "a\\n\\x41" }} }}
"""
OLD = """
name: "old" # a net of 2013
layers { layer { name: "d" type: "data" source: "db" meanfile: "m" batchsize: 2 cropsize: 3
  mirror: true } top: "x" top: "y" }
layers { layer { name: "p" type: "padding" pad: 2 } bottom: "x" top: "p" }
layers { layer { name: "c" type: "conv" num_output: 2 kernelsize: 3 group: 1 biasterm: false
  weight_filler { type: "gaussian" std: 0.1 } blobs_lr: 1. weight_decay: 1. } bottom: "p" top: "c" }
layers { layer { name: "l" type: "softmax_loss" } bottom: "c" bottom: "y" }
"""
V1 = """
layers { name: 'ip' type: INNER_PRODUCT bottom: 'x' top: 'ip' blobs_lr: 1 blobs_lr: 2
  weight_decay: 1 inner_product_param { num_output: 3 } include: { phase: TEST } }
layers < name: "bn" type: BNLL bottom: "ip" top: "ip" loss_weight: [1, 2.5f] >
"""
SOLVER = """
net: "net.prototxt" test_iter: 100 test_interval: 500 base_lr: 0.01 momentum: 0.9
lr_policy: "multistep" stepvalue: [100, 200] snapshot_prefix: "s" solver_mode: CPU
solver_type: ADAM net_param { name: "n" } test_state { stage: "x" level: -1 }
"""


def readers(folder: Path, *, hdf5: bool = True) -> list[Reader]:
    """Return all readers; they keep their files in ``folder``, best one in memory."""
    solver = small_solver()
    solver.step(2)
    found = [
        *_text_readers(folder),
        *_weights_readers(folder, solver),
        *_state_readers(folder, solver),
        *_record_readers(),
        *_array_readers(folder),
        *_list_readers(folder),
        *_leveldb_readers(folder),
        *file_readers(folder),
    ]
    if hdf5:
        found += _hdf5_readers(folder, solver)
    return found


def small_solver() -> Solver:
    """Make a solver whose state is worth fuzzing."""
    param = parse_text(
        'base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 random_seed: 3 type: "Adam"'
        "average_loss: 3 test_iter: 1 test_interval: 1",
        SolverParameter,
    )
    param.net_param.CopyFrom(parse_text(LAYERS, NetParameter))
    return Solver(param, device="numpy")


# -- text --------------------------------------------------------------------------------------


def _text_readers(folder: Path) -> Iterator[Reader]:
    file = folder / "text"

    def net(content: bytes) -> None:
        put(file, content)
        read_net_params(file)

    def solver(content: bytes) -> None:
        put(file, content)
        read_solver_params(file, ignore_unknown_fields=True)

    nets = [NET.encode(), OLD.encode(), V1.encode()]
    yield Reader("net prototxt", nets, net, 1000, (NetParameter, True))
    yield Reader("solver prototxt", [SOLVER.encode()], solver, 470, (SolverParameter, True))

    def look(content: bytes) -> None:
        put(file, content)
        for finding in lint(file):
            str(finding)

    yield Reader("lint of a net", nets, look, 10000, (NetParameter, True), opens=True)
    yield Reader(
        "lint of a solver", [SOLVER.encode()], look, 6000, (SolverParameter, True), opens=True
    )


# -- weights -----------------------------------------------------------------------------------


def _caffemodels(net: Net) -> list[bytes]:
    message = net.to_proto(write_diff=True)
    half = NetParameter()
    half.CopyFrom(message)
    for layer in half.layer:
        for blob in layer.blobs:
            values = np.array(blob.data, "<f2")
            blob.ClearField("data")
            blob.ClearField("diff")
            blob.raw_data, blob.raw_data_type = values.tobytes(), BlobProto.FLOAT16
    old = NetParameter(name="old")
    for layer in message.layer:
        if layer.blobs:
            one = old.layers.add(name=layer.name, type=14, bottom=layer.bottom, top=layer.top)
            for blob in layer.blobs:
                four = one.blobs.add(num=1, channels=1, data=blob.data)
                *_, four.height, four.width = (1, 1, *blob.shape.dim)
    double = NetParameter()
    double.CopyFrom(message)
    for layer in double.layer:
        for blob in layer.blobs:
            set_floats(blob, np.array(blob.data, np.float64))
    return [m.SerializeToString() for m in (message, half, old, double)]


def _weights_readers(folder: Path, solver: Solver) -> Iterator[Reader]:
    file = folder / "weights.caffemodel"
    net = solver.net

    def load(content: bytes) -> None:
        put(file, content)
        with nothing_changes(lambda: _values(net)):
            net.load(file)

    def skip(content: bytes) -> None:
        put(file, content)
        with nothing_changes(lambda: _values(net)):
            net.load(file, on_mismatch="skip")

    def alone(content: bytes) -> None:
        put(file, content)
        load_weights(file)

    def cut(call: Call) -> Call:
        def with_small_arrays(content: bytes) -> None:
            large, read_module.LARGE = read_module.LARGE, 16
            try:
                call(content)
            finally:
                read_module.LARGE = large

        return with_small_arrays

    models = _caffemodels(net)
    form = (NetParameter, False)
    yield Reader("caffemodel into a net", models, load, 580, form)
    yield Reader("caffemodel, skipping", models, skip, 570, form)
    yield Reader("caffemodel alone", models, alone, 400, form)
    yield Reader("caffemodel, arrays cut out", models, cut(load), 880, form)


def _values(net: Net) -> list[bytes]:
    return [
        side.tobytes()
        for blob in net.learnable_params
        for side in (blob.cpu_data(), blob.cpu_diff())
    ]


# -- solver states -----------------------------------------------------------------------------


def _all_of(solver: Solver) -> object:
    return (
        _values(solver.net),
        [array.tobytes() for array in solver.history.arrays()],
        solver.iter,
        solver.current_step,
        solver._checkpointer.resumable.now().SerializeToString(deterministic=True),
    )


def _state_readers(folder: Path, solver: Solver) -> Iterator[Reader]:
    weights, state = solver.snapshot(folder / "state")
    message = read_binary(state, SolverState)
    bare = SolverState()
    bare.CopyFrom(message)
    bare.ClearField("resume")

    def restore(content: bytes) -> None:
        put(state, content)
        with nothing_changes(lambda: _all_of(solver)):
            solver.restore(state)
        try:  # what was accepted must be possible to go on from
            solver.step(1)
        except DemitasseError as error:
            text = f"a state was accepted that leads nowhere: {error}"
            raise AssertionError(text) from error

    files = [state.read_bytes(), bare.SerializeToString(), weights.read_bytes()]
    yield Reader("solver state", files, restore, 8000, (SolverState, False))


# -- records -----------------------------------------------------------------------------------


def _record_readers() -> Iterator[Reader]:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (9, 8, 3), np.uint8)
    plain = array_to_datum(image.transpose(2, 0, 1), 3)
    real = array_to_datum(image.transpose(2, 0, 1).astype("float32"), 2)
    sound = plain.SerializeToString()

    def parse(content: bytes) -> None:
        stacker = RecordCollator()
        stacker.stack([sound])
        images, labels = stacker.stack([content])
        assert len(images) == len(labels) == 1

    def batch(content: bytes) -> None:
        with closing(RecordCollator("color")) as stacker:
            stacker.stack([sound, content, sound])

    encoded = []
    for kind in ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP"):
        file = io.BytesIO()
        PIL.Image.fromarray(image).save(file, kind)
        encoded.append(Datum(data=file.getvalue(), encoded=True, label=1).SerializeToString())
    plain_files, form = [sound, real.SerializeToString()], (Datum, False)
    yield Reader("record", plain_files, parse, 60, form)
    yield Reader("records of a batch", plain_files, batch, 60, form)
    yield Reader("encoded record", encoded, parse, 290)


# -- means, idx files, lists, LevelDB ----------------------------------------------------------


def _array_readers(folder: Path) -> Iterator[Reader]:
    file = folder / "array"
    mean = BlobProto(num=1, channels=3, height=4, width=5)
    set_floats(mean, np.arange(60, dtype=np.float32))
    new = BlobProto()
    new.shape.dim.extend([3, 4, 5])
    set_floats(new, np.arange(60, dtype=np.float64))
    images = struct.pack(">HBBIII", 0, 8, 3, 5, 4, 3) + bytes(range(60))
    labels = struct.pack(">HBBI", 0, 8, 1, 5) + bytes(5)

    def read(reader: Callable[[Path], object]) -> Call:
        def call(content: bytes) -> None:
            put(file, content)
            reader(file)

        return call

    means = [mean.SerializeToString(), new.SerializeToString()]
    yield Reader("mean file", means, read(read_mean), 190, (BlobProto, False))
    yield Reader("idx file", [images, labels], read(read_idx), 110)
    yield Reader("gzipped idx file", [gzip.compress(images, mtime=0)], read(read_idx), 180)


def _list_readers(folder: Path) -> Iterator[Reader]:
    file = folder / "list"
    listed = b"a.png 1\nb c.jpg 2 3\n\n d.png -1.5\n"
    windows = b"# 0\na.png\n3\n10\n20\n2\n1 0.9 0 0 5 5\n0 0.1 1 1 3 3\n# 1\nb.png\n3\n5\n5\n0\n"

    def images(content: bytes) -> None:
        put(file, content)
        read_image_list(file, lambda name: folder / name)

    def boxes(content: bytes) -> None:
        put(file, content)
        read_window_file(file, 0.5, 0.5)

    yield Reader("list of images", [listed], images, 140)
    yield Reader("window file", [windows], boxes, 120)


def _leveldb_readers(folder: Path) -> Iterator[Reader]:
    place = folder / "leveldb"
    place.mkdir()
    entry = b"\x01\x03key\x05value"
    change = struct.pack("<QI", 1, 1) + entry
    log = struct.pack("<IHB", 0, len(change), 1) + change
    edit = b"\x01\x1aleveldb.BytewiseComparator\x02\x03\x09\x00\x03\x04\x04\x01"
    (place / "CURRENT").write_text("MANIFEST-000002\n")
    (place / "MANIFEST-000002").write_bytes(struct.pack("<IHB", 0, len(edit), 1) + edit)

    def read(content: bytes) -> None:
        put(place / "000003.log", content)
        with closing(open_db(place, "LEVELDB")) as database:
            for _ in records(database.new_cursor()):
                pass

    def snappy(content: bytes) -> None:
        try:
            unsnap(content)
        except ValueError as error:
            raise DataError(str(error)) from error

    yield Reader("LevelDB log", [log, log * 3], read, 430)
    yield Reader("snappy block", [b"\x0a\x08abc\x09\x03\x00X"], snappy, 60)


# -- HDF5 --------------------------------------------------------------------------------------


def _hdf5_readers(folder: Path, solver: Solver) -> Iterator[Reader]:
    import h5py

    solver.param.snapshot_format = SolverParameter.HDF5
    weights, state = solver.snapshot(folder / "hdf5")
    solver.param.snapshot_format = SolverParameter.BINARYPROTO
    rows, loaded = folder / "rows.h5", folder / "loaded.h5"
    with h5py.File(rows, "w") as file:
        file["x"] = np.arange(24, dtype="float32").reshape(6, 4)
        file["y"] = np.arange(6)
        file.create_dataset("z", data=np.zeros((6, 50)), chunks=(2, 50), compression="gzip")
    net = solver.net
    alone = folder / "alone.h5"

    def load(content: bytes) -> None:
        put(loaded, content)
        with nothing_changes(lambda: _values(net)):
            net.load(loaded)

    def names(content: bytes) -> None:
        put(alone, content)
        load_weights(alone)

    def restore(content: bytes) -> None:
        put(state, content)
        with nothing_changes(lambda: _all_of(solver)):
            solver.restore(state)
        solver.step(1)

    def data(content: bytes) -> None:
        put(rows, content)
        with closing(Hdf5File(rows, ["x", "z"])) as file:
            file.row(file.rows - 1)

    files = weights.read_bytes()
    yield Reader("HDF5 weights into a net", [files], load, 5000)
    yield Reader("HDF5 weights alone", [files], names, 4000)
    yield Reader("HDF5 solver state", [state.read_bytes()], restore, 20000)
    yield Reader("HDF5 rows", [rows.read_bytes()], data, 2000)


__all__ = ["NET", "OLD", "SOLVER", "V1", "Reader", "readers", "small_solver"]

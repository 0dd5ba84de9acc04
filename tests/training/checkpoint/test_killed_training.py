"""SIGKILL at random moments: every restart goes on, bit for bit, as the run that was left alone.

``nox -s survive`` kills fifty times on each device; DEMITASSE_KILLS says how often.
"""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import train_until_killed

from demitasse import Solver
from demitasse.io.data.databases.writing import write_database
from demitasse.io.proto import read_solver_params
from demitasse.training import read_state

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("DEMITASSE_KILLS", "50"))

NET = """
name: "killed"
layer { name: "images" type: "ImageData" top: "x" top: "y" include { phase: TRAIN }
  image_data_param { source: "FOLDER/list.txt" batch_size: 5 shuffle: true is_color: false }
  transform_param { crop_size: 10 mirror: true scale: 0.01 } }
layer { name: "records" type: "Data" top: "x2" top: "y2" include { phase: TRAIN }
  data_param { source: "FOLDER/db" backend: LMDB batch_size: 5 }
  transform_param { crop_size: 10 mirror: true scale: 0.01 } }
layer { name: "rows" type: "HDF5Data" top: "a" top: "b" include { phase: TRAIN }
  hdf5_data_param { source: "FOLDER/files.txt" batch_size: 5 shuffle: true } }
layer { name: "test" type: "Data" top: "x" top: "y" include { phase: TEST }
  data_param { source: "FOLDER/db" backend: LMDB batch_size: 4 }
  transform_param { crop_size: 10 scale: 0.01 } }
layer { name: "both" type: "Eltwise" bottom: "x" bottom: "x2" top: "sum" include { phase: TRAIN } }
layer { name: "one" type: "Power" bottom: "x" top: "sum" include { phase: TEST } }
layer { name: "quiet" type: "Silence" bottom: "y2" bottom: "a" bottom: "b"
  include { phase: TRAIN } }
layer { name: "conv" type: "Convolution" bottom: "sum" top: "conv"
  convolution_param { num_output: 8 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "wide" type: "InnerProduct" bottom: "conv" top: "wide"
  inner_product_param { num_output: 5000 weight_filler { type: "xavier" } } }
layer { name: "drop" type: "Dropout" bottom: "wide" top: "wide" }
layer { name: "ip" type: "InnerProduct" bottom: "wide" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "y" top: "loss" }
"""
SOLVER = """
net: "net.prototxt" test_iter: 0 test_interval: 7 base_lr: 0.01 momentum: 0.9 weight_decay: 0.001
lr_policy: "plateau" gamma: 0.9 plateau_winsize: [20, 20, 20] warmup_iter: 5 average_loss: 4
iter_size: 2 max_iter: 1000000 snapshot: 3 random_seed: 5 snapshot_prefix: "s" FORMAT
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images in a list, in a database and in two HDF5 files; a net and a solver."""
    h5py, image = pytest.importorskip("h5py"), pytest.importorskip("PIL.Image")
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (23, 1, 12, 12), np.uint8)
    labels = rng.integers(0, 3, 23)
    write_database(folder / "db", zip(images, labels.tolist(), strict=True))
    for index, pixels in enumerate(images):
        image.fromarray(pixels[0]).save(folder / f"{index}.png")
    lines = [f"{folder}/{index}.png {label}" for index, label in enumerate(labels)]
    (folder / "list.txt").write_text("\n".join(lines))
    for name, count in (("a.h5", 4), ("b.h5", 7)):
        with h5py.File(folder / name, "w") as file:
            file["a"], file["b"] = rng.random((count, 3), "float32"), np.arange(count)
    (folder / "files.txt").write_text(f"{folder}/a.h5\n{folder}/b.h5\n")
    (folder / "net.prototxt").write_text(NET.replace("FOLDER", folder.as_posix()))
    return folder


class Run:
    """A run in a folder of its own, which is killed again and again.

    Attributes:
        iteration: The last one that was begun.
        furthest: The last one that was begun before any of the kills.
    """

    def __init__(self, data: Path, place: Path, device: str) -> None:
        self.place, self.iteration, self.furthest = place, 0, 0
        self.command = [sys.executable, train_until_killed.__file__, str(data), device]

    def live(self, iterations: int, files: int, seconds: float) -> None:
        """Start, train, and be killed a little later.

        Args:
            iterations: How many are begun first.
            files: How many files of snapshots are begun then.
            seconds: How long it may live on.
        """
        process = subprocess.Popen(self.command, cwd=self.place, stdout=subprocess.PIPE)
        lines = []
        try:
            lines += lines_until(process.stdout, lambda line: line != b"w", iterations + 1)
            lines += lines_until(process.stdout, lambda line: line == b"w", files)
            time.sleep(seconds)
        finally:
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.read().split()
            process.stdout.close()
            assert process.wait() == -signal.SIGKILL
        numbers = [int(line) for line in lines if line != b"w"]
        assert numbers[0] >= self.iteration - 3  # a snapshot loses no more than that
        self.iteration = numbers[-1]
        self.furthest = max(self.furthest, self.iteration)

    def snapshots(self) -> dict[str, str]:
        """Return what is in the snapshots that are there, all of which can be read."""
        for state in self.place.glob("s_*.solverstate*"):
            weights = self.place / read_state(state).learned_net
            assert weights.is_file()
        return contents(self.place)


def lines_until(stream, wanted, count: int) -> list[bytes]:
    """Read lines until so many of them are wanted ones."""
    lines = []
    while count:
        line = stream.readline().strip()
        assert line, "it did not train"
        lines.append(line)
        count -= wanted(line)
    return lines


def contents(place: Path) -> dict[str, str]:
    """Return the snapshots in a folder and a digest of each; HDF5 files are told by what they hold.

    An HDF5 file holds the time of its making.
    """
    return {file.name: digest(file) for file in place.glob("s_*") if "best" not in file.name}


def digest(file: Path) -> str:
    if file.suffix != ".h5":
        return hashlib.sha256(file.read_bytes()).hexdigest()
    import h5py

    found = hashlib.sha256()
    with h5py.File(file) as opened:
        opened.visititems(
            lambda name, item: found.update(
                name.encode() + (item[()].tobytes() if hasattr(item, "dtype") else b"")
            )
        )
    return found.hexdigest()


@pytest.mark.parametrize("fmt", ["BINARYPROTO", "HDF5"])
@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_every_restart_goes_on_exactly(folder, tmp_path, device, fmt, monkeypatch):
    (folder / "solver.prototxt").write_text(SOLVER.replace("FORMAT", f"snapshot_format: {fmt}"))
    broken, alone = tmp_path / "broken", tmp_path / "alone"
    broken.mkdir(), alone.mkdir()
    run, rng, seen = Run(folder, broken, device), random.Random(f"{device} {fmt}"), []
    for _ in range(KILLS if fmt == "BINARYPROTO" else max(1, KILLS // 5)):
        run.live(rng.randrange(9), rng.choice((0, 1, 2)), rng.random() * 0.04)
        seen.append(run.snapshots())

    monkeypatch.chdir(alone)
    reference: dict[str, str] = {}
    param = read_solver_params(folder / "solver.prototxt")
    solver = Solver(param, base_dir=folder, device=device, keep_last=2, keep_best="loss")
    solver.on_snapshot.append(lambda *_files: reference.update(contents(alone)))
    solver.step(run.furthest + 1)
    solver.close()

    assert any(seen)
    wrong = [name for found in seen for name in found if found[name] != reference.get(name)]
    assert wrong == []
    half = len(list(broken.glob(".s_*.part")))
    sys.stdout.write(
        f"\n{device}, {fmt}: {len(seen)} kills up to iteration {run.furthest}, "
        f"{sum(map(len, seen))} files of snapshots, all equal; {half} half written\n"
    )


# -- layers with state ---------------------------------------------------------------------------


COUNTING = """
import caffe
import numpy as np


class Counting(caffe.Layer):
    def setup(self, bottom, top):
        self.random, self.seen = np.random.default_rng(2), []

    def reshape(self, bottom, top):
        top[0].reshape(4, 5, 6)

    def forward(self, bottom, top):
        self.seen = [*self.seen[-5:], float(self.random.normal())]
        top[0].data[...] = self.random.normal(size=(4, 5, 6)) + sum(self.seen)

    def backward(self, top, propagate_down, bottom):
        pass

    def state_dict(self):
        return {"random": self.random.bit_generator.state, "seen": self.seen}

    def load_state_dict(self, state):
        self.random.bit_generator.state, self.seen = state["random"], state["seen"]
"""

ROWS = """layer { name: "rows" type: "DummyData" top: "rows" top: "cont"
  dummy_data_param { shape { dim: 4 dim: 5 dim: 6 } shape { dim: 4 dim: 5 }
    data_filler { type: "gaussian" } data_filler { value: 1 } } }
"""
SEQUENCE = """layer { name: "layer" type: "KIND" bottom: "rows" bottom: "cont" top: "out"
  recurrent_param { num_output: 7 weight_filler { type: "xavier" } } }
"""
IN_PLACE = 'layer { name: "layer" type: "KIND" bottom: "rows" top: "out" }'
IMAGES = """layer { name: "layer" type: "KIND" top: "out" top: "label" FIELDS
  transform_param { crop_size: 10 mirror: true scale: 0.01 } }
"""
STATEFUL = {
    "LSTM": ROWS + SEQUENCE,
    "RNN": ROWS + SEQUENCE,
    "BatchNorm": ROWS + IN_PLACE,
    "Dropout": ROWS + IN_PLACE,
    "DummyData": ROWS.replace('"rows"', '"out"'),
    "Python": 'layer { name: "layer" type: "Python" top: "out" '
    'python_param { module: "counting" layer: "Counting" } }',
    "MemoryData": 'layer { name: "layer" type: "MemoryData" top: "out" top: "label" '
    "memory_data_param { batch_size: 4 channels: 1 height: 5 width: 6 } }",
    "Data": IMAGES.replace(
        "FIELDS", 'data_param { source: "FOLDER/db" backend: LMDB batch_size: 5 }'
    ),
    "ImageData": IMAGES.replace(
        "FIELDS",
        'image_data_param { source: "FOLDER/list.txt" batch_size: 5 shuffle: true }',
    ),
    "HDF5Data": 'layer { name: "layer" type: "HDF5Data" top: "a" top: "b" '
    'hdf5_data_param { source: "FOLDER/files.txt" batch_size: 5 shuffle: true } }',
}
LEARN = """
layer { name: "ip" type: "InnerProduct" bottom: "OUT" top: "ip"
  inner_product_param { num_output: 1 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss"
  reduction_param { operation: SUMSQ coeff: 0.01 } loss_weight: 1 }
"""


@pytest.mark.parametrize("kind", STATEFUL)
def test_every_restart_goes_on_exactly_with_the_state_of_layers(
    folder, tmp_path, kind, monkeypatch
):
    data, broken, alone = tmp_path / "data", tmp_path / "broken", tmp_path / "alone"
    for path in (data, broken, alone):
        path.mkdir()
    layer = STATEFUL[kind].replace("KIND", kind).replace("FOLDER", folder.as_posix())
    net = layer + LEARN.replace("OUT", "a" if kind == "HDF5Data" else "out")
    (data / "net.prototxt").write_text(net)
    (data / "counting.py").write_text(COUNTING)
    fields = SOLVER.replace("FORMAT", "").replace("test_iter: 0", "test_iter: 2")
    (data / "solver.prototxt").write_text(fields)
    run, rng, seen = Run(data, broken, "cpu"), random.Random(kind), []
    for _ in range(max(2, KILLS // 5)):
        run.live(rng.randrange(9), rng.choice((0, 1, 2)), rng.random() * 0.04)
        seen.append(run.snapshots())

    monkeypatch.chdir(alone)
    reference: dict[str, str] = {}
    param = read_solver_params(data / "solver.prototxt")
    solver = Solver(param, base_dir=data, device="cpu", keep_last=2, keep_best="loss")
    train_until_killed.give_rows(solver)
    solver.on_snapshot.append(lambda *_files: reference.update(contents(alone)))
    solver.step(run.furthest + 1)
    solver.close()

    assert any(seen)
    wrong = [name for found in seen for name in found if found[name] != reference.get(name)]
    assert wrong == []
    sys.stdout.write(
        f"\n{kind}: {len(seen)} kills up to iteration {run.furthest}, "
        f"{sum(map(len, seen))} files of snapshots, all equal\n"
    )

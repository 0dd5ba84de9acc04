"""Training that goes on and on, from each source of data, and what a process holds meanwhile."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import PIL.Image

from demitasse import Solver
from demitasse.errors import DataError
from demitasse.io.data import write_annotations, write_database
from demitasse.io.proto import NetParameter, SolverParameter, parse_text
from demitasse.layers.data_layers.memory_data import MemoryData

RECORDS, SIDE, BATCH = 13, 8, 4
STEPS = 100
LOOKS = 10
"""How often a process is looked at, a thousandth of a second apart, for what it goes on holding."""

CROP = "transform_param { crop_size: 6 mirror: true }"
DATABASE = f'data_param {{ source: "%s" batch_size: {BATCH} backend: %s }}'
BOTH = 'top: "x" top: "label"'

SOURCES = {
    "LMDB": f'type: "Data" {BOTH} {CROP} {DATABASE % ("lmdb", "LMDB")}',
    "LMDB that is written": f'type: "Data" {BOTH} {CROP} {DATABASE % ("written", "LMDB")}',
    "LEVELDB": f'type: "Data" {BOTH} {CROP} {DATABASE % ("leveldb", "LEVELDB")}',
    "ImageData": f"""type: "ImageData" {BOTH} {CROP}
        image_data_param {{ source: "images.txt" batch_size: {BATCH} shuffle: true }}""",
    "HDF5Data": f"""type: "HDF5Data" {BOTH}
        hdf5_data_param {{ source: "hdf5.txt" batch_size: {BATCH} shuffle: true }}""",
    "WindowData": f"""type: "WindowData" {BOTH} {CROP}
        window_data_param {{ source: "windows.txt" root_folder: "FOLDER/" batch_size: {BATCH}
        fg_threshold: 0.5 bg_threshold: 0.5 fg_fraction: 0.5 }}""",
    "AnnotatedData": f'type: "AnnotatedData" {BOTH} {DATABASE % ("boxes", "LMDB")}',
    "MemoryData": f"""type: "MemoryData" {BOTH} memory_data_param {{
        batch_size: {BATCH} channels: 3 height: {SIDE} width: {SIDE} }}""",
    "DummyData": f"""type: "DummyData" {BOTH} dummy_data_param {{
        shape {{ dim: {BATCH} dim: 3 dim: {SIDE} dim: {SIDE} }} shape {{ dim: {BATCH} }}
        data_filler {{ type: "gaussian" }} data_filler {{ type: "constant" }} }}""",
    "Python": f'type: "Python" {BOTH} python_param {{ module: "soaked" layer: "Random" }}',
}
DEVICES = ("numpy", "cpu")

NET = """
layer { name: "data" SOURCE }
layer { name: "quiet" type: "Silence" bottom: "label" }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv"
        convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss" loss_weight: 0.001
        reduction_param { operation: SUMSQ } }
"""
SOLVER = """
type: "Adam" base_lr: 0.001 lr_policy: "fixed" momentum: 0.9 test_iter: 2 test_interval: 300
snapshot: 1000 random_seed: 1 display: 0
"""
LAYER = """
import caffe
import numpy as np

class Random(caffe.Layer):
    def setup(self, bottom, top):
        self.random = np.random.default_rng(1)

    def reshape(self, bottom, top):
        top[0].reshape(4, 3, 8, 8)
        top[1].reshape(4)

    def forward(self, bottom, top):
        top[0].data[...] = self.random.normal(size=top[0].shape)

    def backward(self, top, propagate_down, bottom):
        pass
"""
WRITER = """
import lmdb, sys, time
from demitasse.io.data.databases.datum import array_to_datum
import numpy as np
with lmdb.open(sys.argv[1], map_size=1 << 28) as database:
    for number in range(10_000):
        image = np.full((3, 8, 8), number % 256, np.uint8)
        with database.begin(write=True) as writing:
            writing.put(b"%08d" % (number % 40), array_to_datum(image, 1).SerializeToString())
        time.sleep(0.02)
"""


def make_data(folder: Path) -> None:
    """Make a few records of every source."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (RECORDS, 3, SIDE, SIDE)).astype(np.uint8)
    for name, backend in (("lmdb", "LMDB"), ("written", "LMDB"), ("leveldb", "LEVELDB")):
        write_database(folder / name, [(image, 1) for image in images], backend=backend)
    write_annotations(folder / "boxes", [(image, [(1, 0.1, 0.1, 0.9, 0.9, 0)]) for image in images])
    for number, image in enumerate(images):
        PIL.Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"{number}.png")
    lines = [f"{folder}/{number}.png 1" for number in range(RECORDS)]
    (folder / "images.txt").write_text("\n".join(lines))
    windows = "# 0\n0.png\n3 8 8\n2\n1 0.9 0 0 5 5\n1 0.1 1 1 6 6\n"
    (folder / "windows.txt").write_text(windows)
    with h5py.File(folder / "rows.h5", "w") as file:
        file["x"], file["label"] = images.astype(np.float32), np.zeros(RECORDS, np.float32)
    (folder / "hdf5.txt").write_text(f"{folder}/rows.h5\n")
    (folder / "soaked.py").write_text(LAYER)


class Held(NamedTuple):
    """What a process holds.

    Attributes:
        iteration: After so many iterations.
        memory: Resident memory, in MiB.
        files: Open files, without those that a thread was reading just then.
        threads: Threads.
    """

    iteration: int
    memory: float
    files: int
    threads: int


def held(iteration: int) -> Held:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    memory = pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    return Held(iteration, memory, open_files(), _count("task"))


def open_files() -> int:
    """Count the files that stay open: threads that prepare images open each for a moment."""
    fewest = _count("fd")
    for _ in range(LOOKS - 1):
        time.sleep(0.001)
        fewest = min(fewest, _count("fd"))
    return fewest


def _count(what: str) -> int:
    return len(list(Path(f"/proc/self/{what}").iterdir()))


class Soak:
    """Trains from one source for as many rounds as it is asked for.

    Args:
        folder: Where ``make_data`` made the data.
        source: The name of a source.
        device: Where the net runs.
        steps: Iterations between two looks at the process.

    Attributes:
        seen: What the process held after each round.
        refused: How often data could not be read, because it was written meanwhile.
    """

    def __init__(self, folder: Path, source: str, device: str, steps: int = STEPS) -> None:
        self._steps, self._folder, self._source, self._device = steps, folder, source, device
        self._param = parse_text(SOLVER, SolverParameter)
        self._param.snapshot_prefix = str(folder / "s")
        net = NET.replace("SOURCE", SOURCES[source].replace("FOLDER", folder.as_posix()))
        self._param.net_param.CopyFrom(parse_text(net, NetParameter))
        self._solver = self._made()
        self._writer: subprocess.Popen[bytes] | None = None
        if source == "LMDB that is written":
            command = [sys.executable, "-c", WRITER, str(folder / "written")]
            self._writer = subprocess.Popen(command)
        self._before, self.refused, self._rounds = 0, 0, 0
        self.seen: list[Held] = []
        self._go_elsewhere()  # what devices need once is there before the first look

    def __enter__(self) -> "Soak":
        return self

    def __exit__(self, *error: object) -> None:
        self._solver.close()
        if self._writer is not None:
            self._writer.kill()
            self._writer.wait()

    def round(self) -> None:
        """Train a little, with all that happens now and then in a long run."""
        self._rounds += 1
        try:
            self._solver.step(self._steps)
            if self._rounds % 20 == 0:
                self._go_elsewhere()
            if self._rounds % 30 == 0:
                self._resume()
        except DataError:
            if self._writer is None:
                raise
            self.refused += 1
            self._before += self._solver.iter
            self._solver.close()
            self._solver = self._made(again=True)
        if self._writer is not None and self._writer.poll() is not None:
            self._writer = subprocess.Popen(self._writer.args)
        self.seen.append(held(self._before + self._solver.iter))

    def figures(self) -> dict[str, Any]:
        """Return what came of it."""
        after = self.seen[len(self.seen) // 5 :]
        figures: dict[str, Any] = {"source": self._source, "device": self._device}
        figures["iterations"] = self.seen[-1].iteration
        figures["slope"] = round(slope(after), 2)
        for name in ("memory", "files", "threads"):
            first, last = (getattr(one, name) for one in (after[0], after[-1]))
            figures[name] = [round(first, 1), round(last, 1)]
        figures["refused"] = self.refused
        figures["flat"] = flat(after)
        return figures

    def _made(self, *, again: bool = False) -> Solver:
        while True:
            with suppress(*[DataError] * again):
                solver = Solver(
                    self._param, device=self._device, base_dir=self._folder, keep_last=2
                )
                for net in (solver.net, *solver.test_nets):
                    for layer in net.layers:
                        if isinstance(layer, MemoryData):
                            rows = np.ones((3 * BATCH, 3, SIDE, SIDE), np.float32)
                            layer.reset(rows, np.zeros(3 * BATCH, np.float32))
                return solver

    def _go_elsewhere(self) -> None:
        """Train on other devices, and come back."""
        for device in ("strict:device1", *DEVICES, self._device):
            self._solver.net.to(device)
            self._solver.step(1)

    def _resume(self) -> None:
        """Go on in another solver."""
        _, state = self._solver.snapshot()
        self._solver.close()
        self._solver = self._made()
        self._solver.restore(state)


def slope(seen: list[Held]) -> float:
    """Return how fast the memory grows, in MiB per 100,000 iterations."""
    if len(seen) < 2:
        return 0.0
    found = np.polyfit([one.iteration for one in seen], [one.memory for one in seen], 1)
    return float(found[0]) * 100_000


def flat(seen: list[Held]) -> bool:
    """Whether no more files and threads were there at the end than soon after the beginning."""
    half = len(seen) // 2
    return all(
        max(getattr(one, name) for one in seen[half:])
        <= max(getattr(one, name) for one in seen[: half + 1])
        for name in ("files", "threads")
    )

"""Training nets as they were published, given recorded images to read, and trained."""

from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np

from demitasse import Solver
from demitasse.io.data.databases.mnist import read_mnist
from demitasse.io.data.databases.writing import write_database, write_records
from demitasse.io.proto import BlobProto, Datum, LayerParameter, NetParameter, SolverParameter
from demitasse.io.proto.read import read_net_params
from demitasse.io.proto.write import write_binary
from demitasse.io.proto.zero_copy import set_floats


@dataclass
class Published:
    """A training net as it was published, and where its images come from here."""

    folder: Path
    data: Path
    net: NetParameter = field(init=False)

    def read(self, name: str) -> NetParameter:
        """Read the net, of any age, without its layers for phase TEST."""
        self.net = read_net_params(self.data / name)
        kept = [layer for layer in self.net.layer if not _only_test(layer)]
        del self.net.layer[:]
        self.net.layer.extend(kept)
        return self.net

    @property
    def source(self) -> LayerParameter:
        """The layer that reads."""
        return self.net.layer[0]

    def from_database(self, path: Path, batch: int, backend: str = "LMDB") -> None:
        p = self.source.data_param
        p.source, p.batch_size = str(path), batch
        p.backend = p.DB.Value(backend)

    def from_hdf5(self, batch: int, **sets: np.ndarray) -> None:
        with h5py.File(self.folder / "train.h5", "w") as file:
            for name, values in sets.items():
                file[name] = values
        (self.folder / "train.txt").write_text(f"{self.folder / 'train.h5'}\n")
        p = self.source.hdf5_data_param
        p.source, p.batch_size = str(self.folder / "train.txt"), batch

    def images(self, count: int) -> list[tuple[Path, int]]:
        """Photos of ants and bees in turn, and their labels."""
        root = self.data / "data/hymenoptera_train"
        kinds = [sorted((root / kind).glob("*.jpg")) for kind in ("ants", "bees")]
        turns = zip(*kinds, strict=False)
        return [(path, label) for turn in turns for label, path in enumerate(turn)][:count]

    def encoded(self, count: int) -> Path:
        """Write a database of photos as they are, encoded."""
        records = (
            (f"{i:08d}".encode(), Datum(data=path.read_bytes(), label=label, encoded=True))
            for i, (path, label) in enumerate(self.images(count))
        )
        write_records(self.folder / "photos", records)
        return self.folder / "photos"

    def cifar(self, count: int, pad: int = 0) -> Path:
        """Write a database of CIFAR-10 images, with a margin of ``pad`` pixels, and its mean."""
        raw = np.fromfile(self.data / "data/cifar10_lossless_4000.bin", np.uint8, 3073 * count)
        rows, margin = raw.reshape(count, 3073), ((0, 0), (pad, pad), (pad, pad))
        images = [np.pad(row[1:].reshape(3, 32, 32), margin) for row in rows]
        write_database(self.folder / "cifar", zip(images, map(int, rows[:, 0]), strict=True))
        mean = BlobProto(num=1, channels=3, height=32 + 2 * pad, width=32 + 2 * pad)
        set_floats(mean, np.mean(images, axis=0, dtype=np.float32).reshape(-1))
        write_binary(self.folder / "mean.binaryproto", mean)
        self.source.transform_param.mean_file = str(self.folder / "mean.binaryproto")
        return self.folder / "cifar"

    def mnist(self, count: int) -> Path:
        images, labels = read_mnist(self.data / "data/mnist", "test")
        records = zip(images[:count, None], map(int, labels[:count]), strict=True)
        write_database(self.folder / "mnist", records)
        return self.folder / "mnist"

    def losses(self, rate: float, iterations: int, **fields: object) -> list[float]:
        """Train, always from the same weights; return the loss of every iteration."""
        param = SolverParameter(
            train_net_param=self.net,
            base_lr=rate,
            lr_policy="fixed",
            momentum=0.9,
            max_iter=iterations,
            snapshot_after_train=False,
            random_seed=1,
            **fields,
        )
        solver = Solver(param, device="cpu", base_dir=self.folder)
        found = []
        for _ in range(iterations):
            solver.step(1)
            found.append(solver.smoothed_loss)
        return found


def _only_test(layer: LayerParameter) -> bool:
    return bool(layer.include) and all(rule.phase == 1 for rule in layer.include)

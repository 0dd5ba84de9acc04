"""Train two small convolutional nets on colour images of ten classes, each with falling rates.

Without --data on 2,500 drawn shapes, some hundred updates; with --data FOLDER on CIFAR-10's binary
files (data_batch_1.bin ... test_batch.bin), as long as the solvers say.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from demitasse.examples.data import Split, draw_shapes, write_databases
from demitasse.examples.script import Arguments, copy_prototxts, main, train
from demitasse.io.data import compute_mean
from demitasse.io.proto import write_binary

HERE = Path(__file__).parent
DATABASES = ("cifar10_train_lmdb", "cifar10_test_lmdb")
STAGES = {
    "quick": ("quick_solver", "quick_slow_solver"),
    "full": ("full_solver", "full_slow_solver", "full_slowest_solver"),
}
UPDATES = {"quick": (150, 150), "full": (450, 75, 75)}
"""Updates of each stage where images are drawn; the full net begins with smaller weights."""


def run(given: Arguments) -> Mapping[str, float]:
    """Return the accuracy of both nets on images that they were not trained on."""
    copy_prototxts(HERE, given.out)
    write_databases(given.out, drawn() if given.data is None else read(given.data), DATABASES)
    mean = given.out / "mean.binaryproto"
    if not mean.exists():
        write_binary(mean, compute_mean(given.out / DATABASES[0]))
    figures = {}
    for net, stages in STAGES.items():
        state = None
        for stage, updates in zip(stages, UPDATES[net], strict=True):
            asked = given.with_iterations(updates) if given.data is None else given
            solver = train(given.out / f"{stage}.prototxt", asked, resume=state)
            state = solver.snapshot()[1]
        figures[f"{net} accuracy"] = float(solver.test()["accuracy"])
    return figures


def drawn() -> Split:
    """Return shapes on noise, as BGR."""
    images, labels = draw_shapes(2500)
    return Split((images[:2000], labels[:2000]), (images[2000:], labels[2000:]))


def read(folder: Path) -> Split:
    """Read CIFAR-10's binary version: a byte of label, then 32x32 pixels as planes of R, G, B."""
    parts = [
        np.concatenate([np.fromfile(file, np.uint8).reshape(-1, 3073) for file in files])
        for files in (sorted(folder.glob("data_batch_*.bin")), [folder / "test_batch.bin"])
    ]
    train, test = ((part[:, 1:].reshape(-1, 3, 32, 32), part[:, 0]) for part in parts)
    return Split(train, test)


if __name__ == "__main__":
    main(run, __doc__ or "", "cifar10")

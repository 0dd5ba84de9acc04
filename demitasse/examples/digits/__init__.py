"""Train a small LeNet on the 1,797 handwritten digits of scikit-learn.

The digits are the test set of the UCI collection "Optical Recognition of Handwritten Digits":
8x8 pixels, gray values 0 to 16, written here as 16x16 pixels, gray values 0 to 255.
"""

from dataclasses import dataclass
from pathlib import Path

from demitasse.core.atomic import atomic_write
from demitasse.core.config import settings
from demitasse.examples.data import digits as read_digits
from demitasse.examples.data import write_databases
from demitasse.training import Solver

__all__ = ["PROTOTXTS", "Result", "prepare", "run"]

HERE = Path(__file__).parent
PROTOTXTS = ("train_test.prototxt", "deploy.prototxt", "solver.prototxt")
CARD = "model.toml"
PREFIX = "digits/digits"
TEST_SIZE = 297


@dataclass(frozen=True)
class Result:
    """Result of a run.

    Attributes:
        accuracy: Accuracy on the test digits, 0 to 1.
        caffemodel: The trained weights.
    """

    accuracy: float
    caffemodel: Path


def prepare(folder: Path) -> None:
    """Write two databases, prototxts and a card to ``folder``; keep existing files.

    ``train_lmdb`` has 1,500 digits and ``test_lmdb`` 297: a stratified split with a fixed seed.

    Raises:
        ConfigError: scikit-learn is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*PROTOTXTS, CARD):
        if not (folder / name).exists():
            text = (HERE / name).read_text(encoding="utf-8")
            text = text.replace(PREFIX, (folder / "digits").as_posix())
            with atomic_write(folder / name) as file:
                file.write(text.encode())
    write_databases(folder, read_digits(size=16, test=TEST_SIZE), ("train_lmdb", "test_lmdb"))


def run(folder: Path, device: str | None = None) -> Result:
    """Prepare ``folder``, train, test on all test digits, and print the results.

    Args:
        folder: Folder for databases, prototxts and weights.
        device: Device; defaults to the configuration's.
    """
    prepare(folder)
    # A small net gains nothing from more threads, and waits for them on a busy machine.
    with settings.override(threads=1):
        solver = Solver(folder / "solver.prototxt", device=device)
        solver.solve()
        accuracy = float(solver.test(0)["accuracy"])
    caffemodel = Path(f"{solver.param.snapshot_prefix}_iter_{solver.iter}.caffemodel")
    _report(folder, accuracy, caffemodel)
    return Result(accuracy, caffemodel)


def _report(folder: Path, accuracy: float, caffemodel: Path) -> None:
    net, deploy = folder / "train_test.prototxt", folder / "deploy.prototxt"
    print(f"""
Test accuracy {accuracy:.2%} on {TEST_SIZE} digits that were not trained on.
Weights: {caffemodel}

Next:
  demitasse run {folder} IMAGE
  demitasse test --model {net} --weights {caffemodel} --iterations 11
  demitasse time --model {net} --iterations 20
  demitasse consistency {deploy} --weights {caffemodel} --devices cpu numpy""")

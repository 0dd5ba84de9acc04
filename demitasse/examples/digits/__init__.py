"""Train a small LeNet on 1,797 real handwritten digits that scikit-learn carries.

The digits are the test set of the UCI collection "Optical Recognition of Handwritten Digits":
8x8 pixels, grey values 0 to 16. They are written here as 16x16 pixels, grey values 0 to 255.
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
    """What a run reached.

    Attributes:
        accuracy: share of the test digits that were recognised, 0 to 1.
        caffemodel: the trained weights.
    """

    accuracy: float
    caffemodel: Path


def prepare(folder: Path) -> None:
    """Write two databases, prototxts and a card into ``folder``; what is there already is kept.

    ``train_lmdb`` holds 1,500 digits and ``test_lmdb`` 297, chosen and ordered by a fixed seed so
    that every digit has the same share in both.

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
    """Prepare ``folder``, train there, test on all test digits, and print what came out.

    Args:
        folder: where databases, prototxts and weights go.
        device: where to run; None takes it from the configuration.
    """
    prepare(folder)
    # So small a net gains nothing from more threads, and on a busy machine it waits for them.
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

"""Train a small LeNet on the 1,797 handwritten digits of scikit-learn.

The digits are the test set of the UCI collection "Optical Recognition of Handwritten Digits":
8x8 pixels, gray values 0 to 16, written here as 16x16 pixels, gray values 0 to 255.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demitasse.core.atomic import write_bytes
from demitasse.core.config import settings
from demitasse.core.text import command_line
from demitasse.errors import DataError, ErrorCode
from demitasse.examples.data import digits as read_digits
from demitasse.examples.data import write_databases
from demitasse.io.data.images.codecs import encode_image
from demitasse.training import Solver

__all__ = ["PROTOTXTS", "Result", "prepare", "run"]

HERE = Path(__file__).parent
PROTOTXTS = ("train_test.prototxt", "deploy.prototxt", "solver.prototxt")
CARD = "model.toml"
IMAGE = "digit.png"
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
    """Write two databases, prototxts, a card and an image to ``folder``; keep existing files.

    ``train_lmdb`` has 1,500 digits and ``test_lmdb`` 297: a stratified split with a fixed seed. The
    image is a test digit; it is left out without Pillow, which reading images needs, too.

    Raises:
        ConfigError: scikit-learn is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*PROTOTXTS, CARD):
        if not (folder / name).exists():
            text = (HERE / name).read_text(encoding="utf-8")
            text = text.replace(PREFIX, (folder / "digits").as_posix())
            write_bytes(folder / name, text.encode())
    split = read_digits(size=16, test=TEST_SIZE)
    write_databases(folder, split, ("train_lmdb", "test_lmdb"))
    if not (folder / IMAGE).exists():
        try:
            content = encode_image(split.test[0][0], "png")
        except DataError as error:
            if error.code != ErrorCode.UNAVAILABLE:
                raise
            return
        write_bytes(folder / IMAGE, content)


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
        tests: list[Mapping[str, np.ndarray]] = []
        solver.on_test.append(lambda _, means: tests.append(means))
        solver.solve()
        accuracy = float(tests[-1]["accuracy"])
    caffemodel = Path(f"{solver.param.snapshot_prefix}_iter_{solver.iter}.caffemodel")
    _report(folder, accuracy, caffemodel)
    return Result(accuracy, caffemodel)


def _report(folder: Path, accuracy: float, caffemodel: Path) -> None:
    net, deploy, image = (
        folder / name for name in ("train_test.prototxt", "deploy.prototxt", IMAGE)
    )
    commands = [
        ("run", folder, image),
        ("test", "--model", net, "--weights", caffemodel, "--iterations", "11"),
        ("time", "--model", net, "--iterations", "20"),
        ("consistency", deploy, "--weights", caffemodel, "--devices", "cpu", "numpy"),
    ]
    lines = [command_line(*words) for words in commands if image.exists() or image not in words]
    print(
        f"\nTest accuracy {accuracy:.2%} on {TEST_SIZE} digits that were not trained on.\n"
        f"Weights: {caffemodel}\n\nNext:"
    )
    print(*(f"  {line}" for line in lines), sep="\n")

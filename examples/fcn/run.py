"""Train a fully convolutional net to give every pixel of an image its class.

The images are drawn: discs, squares and triangles over noise. With --data FOLDER on that folder's
images/NAME.png, with classes/NAME.png beside them, whose grey values are the classes.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from demitasse.examples.data import scenes
from demitasse.examples.script import Arguments, copy_prototxts, main, train
from demitasse.io.data import read_image, write_database

HERE = Path(__file__).parent
SIZE = 64

Pair = tuple[np.ndarray, np.ndarray]


def run(given: Arguments) -> Mapping[str, float]:
    """Return the share of pixels that are right, and the mean intersection over union."""
    copy_prototxts(HERE, given.out)
    pairs = list(drawn() if given.data is None else read(given.data))
    cut = len(pairs) * 4 // 5
    for part, chosen in (("train", pairs[:cut]), ("test", pairs[cut:])):
        for number, kind in enumerate(("images", "classes")):
            database = given.out / f"{part}_{kind}_lmdb"
            if not database.exists():
                write_database(database, ((pair[number], 0) for pair in chosen))
    pixels, _, union = train(given.out / "solver.prototxt", given).test()["accuracy"].ravel()
    return {"pixel accuracy": float(pixels), "intersection over union": float(union)}


def drawn() -> Iterator[Pair]:
    """Yield images (3, H, W) and their classes (1, H, W)."""
    for scene in scenes(500, SIZE, shapes=3, most=3):
        yield scene.image, scene.classes[None]


def read(folder: Path) -> Iterator[Pair]:
    """Yield the images of a folder with their classes, all of one size."""
    for file in sorted((folder / "images").iterdir()):
        classes = read_image(folder / "classes" / f"{file.stem}.png", color=False)
        yield read_image(file), classes


if __name__ == "__main__":
    main(run, __doc__ or "", "fcn")

"""Fine-tune a trained net on a folder of photos, one subfolder for each class.

The net is that of examples/cifar10, trained on drawn shapes. The photos are 60 JPEGs, drawn too:
round shapes and shapes with corners. With --data FOLDER on that folder's photos, of two classes.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from demitasse.examples.data import SHAPES, Split, draw_shapes, write_databases
from demitasse.examples.script import Arguments, copy_prototxts, main, train
from demitasse.io.data import compute_mean
from demitasse.io.proto import write_binary

HERE = Path(__file__).parent
CIFAR = HERE.parent / "cifar10"
ROUND = ("disc", "ring")
TRAINED = 300
"""Updates of the net that is fine-tuned."""


def run(given: Arguments) -> Mapping[str, float]:
    """Return the accuracy on unseen photos, fine-tuned and trained from nothing."""
    copy_prototxts(CIFAR, given.out)
    copy_prototxts(HERE, given.out)
    weights = given.out / "shapes.caffemodel"
    if not weights.exists():
        pretrain(given, weights)
    photos = given.data or given.out / "photos"
    if given.data is None:
        draw_photos(photos, 160)
    write_lists(photos, given.out)
    solver = given.out / "finetune_solver.prototxt"
    return {
        "fine-tuned accuracy": float(train(solver, given, weights=weights).test()["accuracy"]),
        "accuracy from nothing": float(train(solver, given).test()["accuracy"]),
    }


def pretrain(given: Arguments, weights: Path) -> None:
    """Train the net of examples/cifar10 on ten classes of shapes."""
    images, labels = draw_shapes(2500)
    split = Split((images[:2000], labels[:2000]), (images[2000:], labels[2000:]))
    write_databases(given.out, split, ("cifar10_train_lmdb", "cifar10_test_lmdb"))
    write_binary(given.out / "mean.binaryproto", compute_mean(given.out / "cifar10_train_lmdb"))
    solver = train(given.out / "quick_solver.prototxt", given.with_iterations(TRAINED))
    shutil.move(solver.snapshot()[0], weights)


def draw_photos(folder: Path, count: int) -> None:
    """Write JPEGs of 64x64 pixels into a folder for each class."""
    images, labels = draw_shapes(count, size=64, seed=1)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        kind = "round" if SHAPES[label // 2] in ROUND else "cornered"
        file = folder / kind / f"{number:03}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[::-1].transpose(1, 2, 0)).save(file, quality=95)


def write_lists(photos: Path, out: Path) -> None:
    """Write the lists that the net's data layers read: every fourth photo is for the test."""
    lines: dict[str, list[str]] = {"train": [], "test": []}
    for label, folder in enumerate(sorted(path for path in photos.iterdir() if path.is_dir())):
        for number, file in enumerate(sorted(folder.iterdir())):
            lines["train" if number % 4 else "test"].append(f"{file.resolve()} {label}")
    for part, text in lines.items():
        (out / f"{part}.txt").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main(run, __doc__ or "", "finetune")

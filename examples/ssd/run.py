"""Train a single-shot detector to find discs and squares.

The images are drawn, 64 x 64 pixels with one shape or two over noise. With --data FOLDER on what
train_lmdb and test_lmdb there hold: AnnotatedDatum records of that size, with classes 1 and 2.
"""

from collections.abc import Mapping
from pathlib import Path

from demitasse.examples.data import scenes
from demitasse.examples.script import Arguments, copy_prototxts, main, train
from demitasse.io.data import write_annotations

HERE = Path(__file__).parent
SIZE = 64


def run(given: Arguments) -> Mapping[str, float]:
    """Return the mean average precision on images that were not trained on."""
    copy_prototxts(HERE, given.out)
    if given.data is None:
        write_scenes(given.out / "train_lmdb", count=800, seed=0)
        write_scenes(given.out / "test_lmdb", count=100, seed=1)
    else:
        net = given.out / "train_test.prototxt"
        text = net.read_text(encoding="utf-8")
        for part in ("train", "test"):
            text = text.replace(f'"{part}_lmdb"', f'"{(given.data / part).resolve()}_lmdb"')
        net.write_text(text, encoding="utf-8")
    solver = train(given.out / "solver.prototxt", given)
    return {"mean average precision": float(solver.test()["detection_eval"])}


def write_scenes(path: Path, count: int, seed: int) -> None:
    """Write drawn images and where their shapes are; what is there already is kept."""
    if not path.exists():
        drawn = scenes(count, SIZE, shapes=2, most=2, seed=seed)
        write_annotations(
            path,
            (
                (
                    scene.image,
                    [(kind, *(edge / SIZE for edge in box)) for kind, *box in scene.boxes],
                )
                for scene in drawn
            ),
        )


if __name__ == "__main__":
    main(run, __doc__ or "", "ssd")

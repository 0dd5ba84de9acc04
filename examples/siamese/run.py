"""Train two towers with shared weights to tell whether two digits are the same.

Without --data on pairs of scikit-learn's 1,797 digits; with --data FOLDER on MNIST's four files.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from demitasse import Net
from demitasse.examples.data import Split, digits, write_databases
from demitasse.examples.script import Arguments, copy_prototxts, main, train
from demitasse.io.data.databases.mnist import read_mnist

HERE = Path(__file__).parent
QUICK = 400
"""Updates where there are only some digits."""


def run(given: Arguments) -> Mapping[str, float]:
    """Return the loss of unseen pairs, and how often the nearest digit in the plane is the same."""
    copy_prototxts(HERE, given.out)
    singles = digits() if given.data is None else read(given.data)
    pairs = Split(paired(*singles.train, seed=0), paired(*singles.test, seed=1))
    write_databases(given.out, pairs, ("pairs_train_lmdb", "pairs_test_lmdb"))
    if given.data is None:
        given = given.with_iterations(QUICK)
    solver = train(given.out / "solver.prototxt", given)
    weights, _ = solver.snapshot()
    with Net(given.out / "deploy.prototxt", "TEST", weights=weights, device=given.device) as net:
        images, labels = (part[:1000] for part in singles.test)
        points = net.predict(images / np.float32(256), batch_size=100)["feature"]
    return {"loss": float(solver.test()["loss"]), "nearest is the same": nearest(points, labels)}


def paired(images: np.ndarray, labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Put every image beside another, half of them of the same label.

    Shapes: images (N, 1, H, W) -> (N, 2, H, W); labels (N,): 1 where both are the same.
    """
    rng = np.random.default_rng(seed)
    same = rng.integers(0, 2, len(labels)).astype(bool)
    partners = [
        rng.choice(np.flatnonzero((labels == label) == wanted))
        for label, wanted in zip(labels, same, strict=True)
    ]
    return np.concatenate([images, images[partners]], axis=1), same.astype(int)


def nearest(points: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of points whose nearest other point has the same label."""
    distances = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
    np.fill_diagonal(distances, np.inf)
    return float((labels[distances.argmin(axis=1)] == labels).mean())


def read(folder: Path) -> Split:
    """Read MNIST's four files."""
    train, test = (read_mnist(folder, split) for split in ("train", "test"))
    return Split((train[0][:, None], train[1]), (test[0][:, None], test[1]))


if __name__ == "__main__":
    main(run, __doc__ or "", "siamese")

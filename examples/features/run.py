"""Use what a trained net computes inside as features for another library.

LeNet learns the digits; the 500 values before its last layer then describe digits that it has not
seen. Grouped into ten by k-means, which knows no labels, they fall apart by digit far better than
their pixels do. --data FOLDER takes MNIST's four files.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from demitasse import Net
from demitasse.examples.data import Split, digits, write_databases
from demitasse.examples.script import Arguments, copy_prototxts, main, train
from demitasse.io.data.databases.mnist import read_mnist

MNIST = Path(__file__).parents[1] / "mnist"
QUICK = 600


def run(given: Arguments) -> Mapping[str, float]:
    """Return how well groups of pixels and groups of features agree with the digits, 1 at best."""
    copy_prototxts(MNIST, given.out)
    split = digits() if given.data is None else read(given.data)
    write_databases(given.out, split, ("mnist_train_lmdb", "mnist_test_lmdb"))
    if given.data is None:
        given = given.with_iterations(QUICK)
    weights, _ = train(given.out / "solver.prototxt", given).snapshot()
    images, labels = (part[:2000] for part in split.test)
    return {
        "agreement by pixels": agreement(images.reshape(len(images), -1), labels),
        "agreement by features": agreement(features(given, weights, images), labels),
    }


def agreement(values: np.ndarray, labels: np.ndarray) -> float:
    """Group values (N, K) into ten, and return how well the groups agree with the labels (N,)."""
    groups = KMeans(10, n_init=10, random_state=0).fit_predict(values)
    return float(adjusted_rand_score(labels, groups))


def features(given: Arguments, weights: Path, images: np.ndarray) -> np.ndarray:
    """Return the 500 values of the layer before the last, for each image.

    Shapes: images (N, 1, 28, 28) -> (N, 500).
    """
    deploy = given.out / "features.prototxt"
    deploy.write_text(headless((given.out / "train_test.prototxt").read_text()))
    with Net(deploy, "TEST", weights=weights, device=given.device) as net:
        return net.predict(images / np.float32(256), batch_size=100)["ip1"]


def headless(text: str) -> str:
    """Return LeNet's prototxt with an input for its data, and nothing behind ``relu1``."""
    body = text[text.index('layer {\n  name: "conv1"') : text.index('layer {\n  name: "ip2"')]
    shape = "input_param { shape { dim: 100 dim: 1 dim: 28 dim: 28 } }"
    return f'layer {{ name: "data" type: "Input" top: "data" {shape} }}\n{body}'


def read(folder: Path) -> Split:
    """Read MNIST's four files."""
    train, test = (read_mnist(folder, split) for split in ("train", "test"))
    return Split((train[0][:, None], train[1]), (test[0][:, None], test[1]))


if __name__ == "__main__":
    main(run, __doc__ or "", "features")

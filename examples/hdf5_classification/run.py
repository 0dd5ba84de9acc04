"""Logistic regression, and a small net beside it, on a table of numbers in HDF5 files.

Without --data on 10,000 points that scikit-learn makes up: four numbers each, two classes, which no
straight line parts well. --data FOLDER takes train.h5 and test.h5 with data (N, C) and label (N,).
"""

from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np

from demitasse.examples.script import Arguments, copy_prototxts, main, train

HERE = Path(__file__).parent


def run(given: Arguments) -> Mapping[str, float]:
    """Return the accuracy of both on points that they were not trained on."""
    copy_prototxts(HERE, given.out)
    source = given.out if given.data is None else given.data
    if given.data is None:
        write_points(source)
    for part in ("train", "test"):
        (given.out / f"{part}.txt").write_text(f"{(source / part).resolve()}.h5\n")
    return {
        f"{net} accuracy": float(
            train(given.out / f"{net}_solver.prototxt", given).test()["accuracy"]
        )
        for net in ("logistic", "nonlinear")
    }


def write_points(folder: Path) -> None:
    """Write ``train.h5`` and ``test.h5``: data (N, 4) and label (N,), float32."""
    from sklearn.datasets import make_classification
    from sklearn.model_selection import train_test_split

    points, labels = make_classification(
        10_000, n_features=4, n_redundant=0, n_informative=2, n_clusters_per_class=2,
        hypercube=False, random_state=0,
    )  # fmt: skip
    parts = train_test_split(points, labels, random_state=0)
    for part, (data, label) in {"train": parts[::2], "test": parts[1::2]}.items():
        with h5py.File(folder / f"{part}.h5", "w") as file:
            file["data"], file["label"] = data.astype(np.float32), label.astype(np.float32)


if __name__ == "__main__":
    main(run, __doc__ or "", "hdf5_classification")

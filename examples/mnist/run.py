"""Train LeNet by seven rules and a deep autoencoder by four, on handwritten digits.

Without --data on the 1,797 digits of scikit-learn, 200 updates each; with --data FOLDER on MNIST's
four files, as long as the solvers say.
"""

from collections.abc import Mapping
from pathlib import Path

from demitasse.examples.data import digits, write_databases
from demitasse.examples.script import Arguments, copy_prototxts, main, train
from demitasse.io.data.databases.mnist import convert

HERE = Path(__file__).parent
DATABASES = ("mnist_train_lmdb", "mnist_test_lmdb")
QUICK = 200
"""Updates where there are only some digits."""


def run(given: Arguments) -> Mapping[str, float]:
    """Return the accuracy by each rule, and the mean error of each autoencoder's pixels."""
    copy_prototxts(HERE, given.out)
    if given.data is None:
        write_databases(given.out, digits(), DATABASES)
        given = given.with_iterations(QUICK)
    elif not (given.out / DATABASES[1]).exists():
        convert(given.data, given.out)
    figures = {}
    for file in sorted(given.out.glob("*solver.prototxt")):
        solver = train(file, given)
        unseen = solver.test(len(solver.test_nets) - 1 if "autoencoder" in file.name else 0)
        output = "error" if "autoencoder" in file.name else "accuracy"
        figures[f"{file.stem} {output}"] = float(unseen[output])
    return figures


if __name__ == "__main__":
    main(run, __doc__ or "", "mnist")

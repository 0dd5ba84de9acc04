"""Turn a classifier of small images into one that scans large images, without training again.

A fully connected layer is a convolution whose window is its whole input. LeNet, trained on single
digits, is written again with convolutions in their place, takes over the weights, and reads a strip
of digits in one pass. --data FOLDER takes MNIST's four files.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from demitasse import Net
from demitasse.examples.data import digits, write_databases
from demitasse.examples.script import Arguments, copy_prototxts, main, train
from demitasse.io.data.databases.mnist import convert, read_mnist

HERE = Path(__file__).parent
MNIST = HERE.parent / "mnist"
SIZE, STRIDE = 28, 4
"""Of a digit, and how far apart the places are that the whole net reads: two poolings by 2."""
DIGITS = 10
QUICK = 200


def run(given: Arguments) -> Mapping[str, float]:
    """Return how both nets differ on single digits, and the share of strips' digits read right."""
    copy_prototxts(MNIST, given.out)
    copy_prototxts(HERE, given.out)
    if given.data is None:
        split, given = digits(), given.with_iterations(QUICK)
        write_databases(given.out, split, ("mnist_train_lmdb", "mnist_test_lmdb"))
        images, labels = split.test
    else:
        if not (given.out / "mnist_train_lmdb").exists():
            convert(given.data, given.out)
        images, labels = read_mnist(given.data, "test")
        images = images[:, None]
    weights, _ = train(given.out / "solver.prototxt", given).snapshot()

    whole = Net(given.out / "classifier.prototxt", "TEST", weights=weights, device=given.device)
    scan = Net(given.out / "scanner.prototxt", "TEST", weights=weights, device=given.device)
    for old, new in (("ip1", "ip1_conv"), ("ip2", "ip2_conv")):
        for of, to in zip(whole.params[old], scan.params[new], strict=True):
            to.data[...] = of.data.reshape(to.shape)  # the same values in the same order

    pixels = images[:200] / np.float32(256)
    single = whole.predict(pixels)["prob"]
    moved = scan.predict(pixels)["prob"]
    count = len(labels) // DIGITS * DIGITS
    strips = np.concatenate(np.split(images[:count] / np.float32(256), DIGITS), axis=3)
    found = scan.predict(strips)["prob"][:, :, 0, :: SIZE // STRIDE].argmax(axis=1)
    truth = np.stack(np.split(labels[:count], DIGITS), axis=1)
    return {
        "largest difference": float(abs(single - moved[:, :, 0, 0]).max()),
        "accuracy on strips": float((found == truth).mean()),
    }


if __name__ == "__main__":
    main(run, __doc__ or "", "net_surgery")

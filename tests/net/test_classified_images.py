"""Real images, from their files to classes: as the original Caffe classified them."""

import json
import re

import numpy as np
import pytest

from demitasse.io.data.databases.mnist import read_mnist
from demitasse.io.data.images.codecs import read_image
from demitasse.io.data.images.resize import resize_image
from demitasse.net import Net

BGR_MEANS = np.array([104, 117, 123], np.float32).reshape(3, 1, 1)


def recorded(folder, name):
    return json.loads((folder / "refs/index.json").read_text())[name]


def scores(folder, name, images, device):
    """What a trained net makes of a batch of images. Shape: (N, classes)."""
    entry = recorded(folder, name)
    models = folder / "models"
    net = Net(models / entry["net"], "TEST", weights=models / entry["weights"], device=device)
    [given] = net.inputs
    net.blobs[given].reshape(images.shape)
    net.set_input(given, images)
    net.forward()
    [top] = net.outputs
    return net.blobs[top].cpu_data().reshape(len(images), -1)


def right(folder, name):
    """How many of how many images were classified rightly: "argmax right 19/20"."""
    counts = re.fullmatch(r"argmax right (\d+)/(\d+)", recorded(folder, name)["top"])
    assert counts is not None
    return int(counts[1]), int(counts[2])


@pytest.mark.slow
def test_squeezenet_takes_the_cat_for_a_fox(reference_data, backend):
    top = re.findall(r"(\d+) '\S+ ([^;]+?) ([\d.]+)(?:;|$)", recorded_top(reference_data))
    image = resize_image(read_image(reference_data / "images/cat.jpg"), 227, 227)

    [found] = scores(
        reference_data, "squeezenet10_imagenet", image[None] - BGR_MEANS, device=backend
    )

    best = np.argsort(-found)[:5]
    words = (reference_data / "data/synset_words.txt").read_text().splitlines()
    assert [int(number) for number, _, _ in top] == best.tolist()
    assert all(said in words[number] for number, (_, said, _) in zip(best, top, strict=True))
    np.testing.assert_allclose(found[best], [float(s) for _, _, s in top], atol=5e-2)


def recorded_top(folder):
    return recorded(folder, "squeezenet10_imagenet")["top"]


@pytest.mark.parametrize(
    "name", ["resnet20_cifar10_aug", "cifar10_quick_v1", "cmsisnn_cifar10_m7_h5"]
)
def test_cifar10_images(name, reference_data):
    wanted, count = right(reference_data, name)
    raw = np.fromfile(reference_data / "data/cifar10_lossless_4000.bin", np.uint8, 3073 * count)
    rows = raw.reshape(count, 3073)
    images = rows[:, 1:].reshape(count, 3, 32, 32) - np.load(
        reference_data / "data/cifar10_mean.npy"
    ).astype(np.float32)

    found = scores(reference_data, name, images, device="cpu")

    assert (found.argmax(axis=1) == rows[:, 0]).sum() == wanted


def test_mnist_digits(reference_data):
    wanted, count = right(reference_data, "lenet_mnist_v1")
    images, labels = read_mnist(reference_data / "data/mnist", "test")
    batch = images[:count, None].astype(np.float32) / 256

    found = scores(reference_data, "lenet_mnist_v1", batch, device="cpu")

    assert (found.argmax(axis=1) == labels[:count]).sum() == wanted

"""Public nets learn: each from its own training prototxt, a few iterations on recorded data.

Sources are redirected to small databases, lists and files made of the recorded images, and
batches are cut, so the learning rates are not the published ones; everything else is as it was
published. A source holds as many records as a batch, so that the loss of every iteration is that
of the same images; only the siamese net's pairs and the regression's random numbers go on.
"""

import shutil
import sys

import h5py
import numpy as np
import pytest
from published import Published

from demitasse.io.data.databases.mnist import read_mnist

pytestmark = pytest.mark.slow

BGR_MEANS = (104, 117, 123)
PYLOSS = """
import numpy as np
import caffe


class EuclideanLossLayer(caffe.Layer):
    def setup(self, bottom, top):
        if len(bottom) != 2:
            raise Exception("two inputs are compared")

    def reshape(self, bottom, top):
        self.diff = np.zeros_like(bottom[0].data, dtype=np.float32)
        top[0].reshape(1)

    def forward(self, bottom, top):
        self.diff[...] = bottom[0].data - bottom[1].data
        top[0].data[...] = np.sum(self.diff**2) / bottom[0].num / 2

    def backward(self, top, propagate_down, bottom):
        for i, sign in enumerate((1, -1)):
            if propagate_down[i]:
                bottom[i].diff[...] = sign * self.diff / bottom[i].num
"""
CLIPS = """
from pathlib import Path

import caffe
import numpy as np
from PIL import Image

STEPS, SIZE = 4, 227


class videoReadTrain_RGB(caffe.Layer):
    def setup(self, bottom, top):
        paths = sorted(Path(__file__).with_name("images").glob("*.jpg"))[:STEPS]
        images = [Image.open(path).convert("RGB").resize((SIZE, SIZE)) for path in paths]
        self.frames = np.stack([np.asarray(p, np.float32)[..., ::-1] - 110 for p in images])

    def reshape(self, bottom, top):
        top[0].reshape(STEPS, 3, SIZE, SIZE)
        top[1].reshape(STEPS)
        top[2].reshape(STEPS)

    def forward(self, bottom, top):
        top[0].data[...] = self.frames.transpose(0, 3, 1, 2)
        top[1].data[...] = 42
        top[2].data[...] = np.arange(STEPS) > 0

    def backward(self, top, propagate_down, bottom):
        pass
"""


def expect_falling(losses: list[float]) -> None:
    print(" ".join(f"{loss:.4g}" for loss in losses))  # noqa: T201 - read with pytest -s

    assert np.isfinite(losses).all()
    assert np.mean(losses[-3:]) < losses[0], losses


@pytest.fixture
def published(reference_data, tmp_path):
    return Published(tmp_path, reference_data)


@pytest.fixture
def _user_modules(monkeypatch):
    """Forget the modules of Python layers afterwards."""

    from demitasse.layers import python as python_layer

    monkeypatch.setattr(python_layer, "_beside", {})
    yield
    for name in ("pyloss", "sequence_input_layer"):
        sys.modules.pop(name, None)


def test_lenet_of_2013(published):
    published.read("prototxt/BVLC+caffe@v0.9/examples/lenet/lenet_train.prototxt")
    published.from_database(published.mnist(16), batch=16)

    expect_falling(published.losses(0.01, 12))


def test_cifar10_full_of_2014(published):
    published.read("prototxt/BVLC+caffe@v0.9999/examples/cifar10/cifar10_full_train_test.prototxt")
    published.from_database(published.cifar(4), batch=4)

    expect_falling(published.losses(0.001, 12))


def test_cifar10_quick(published):
    published.read("models/cifar10_quick_v1/cifar10_quick_train_test.prototxt")
    published.from_database(published.cifar(4), batch=4)

    expect_falling(published.losses(0.001, 12))


def test_mnist_autoencoder(published):
    published.read("prototxt/BVLC+caffe/examples/mnist/mnist_autoencoder.prototxt")
    published.from_database(published.mnist(16), batch=16)

    expect_falling(published.losses(0.001, 10))


def test_siamese_net_reads_leveldb(published):
    published.read("prototxt/BVLC+caffe/examples/siamese/mnist_siamese_train_test.prototxt")
    copy = published.folder / "pairs"
    shutil.copytree(published.data / "data/mnist_siamese_test_leveldb", copy)
    published.from_database(copy, batch=64, backend="LEVELDB")

    expect_falling(published.losses(0.01, 12))


def test_classification_of_hdf5_data(published):
    published.read("prototxt/BVLC+caffe/examples/hdf5_classification/nonlinear_train_val.prototxt")
    images, labels = read_mnist(published.data / "data/mnist", "test")
    pixels = images[:100].reshape(100, -1).astype(np.float32) / 255
    published.from_hdf5(100, data=pixels, label=(labels[:100] % 2).astype(np.float32))

    expect_falling(published.losses(0.1, 12))


def test_fsrcnn_reads_hdf5(published):
    published.read("models/fsrcnn_x3/fsrcnn_net.prototxt")
    with h5py.File(published.data / "data/fsrcnn_test.h5") as file:
        published.from_hdf5(64, data=file["data"][:64], label=file["label"][:64])

    expect_falling(published.losses(0.0001, 12))


@pytest.mark.usefixtures("_user_modules")
def test_linear_regression_with_a_python_loss(published):
    published.read("prototxt/BVLC+caffe/examples/pycaffe/linreg.prototxt")
    (published.folder / "pyloss.py").write_text(PYLOSS)

    expect_falling(published.losses(0.02, 30))


def test_resnet20(published):
    published.read("models/resnet20_cifar10_aug/res20_cifar_train_test.prototxt")
    published.from_database(published.cifar(4, pad=4), batch=4)

    expect_falling(published.losses(0.02, 15))


def test_squeezenet(published):
    published.read("prototxt/forresti+SqueezeNet/SqueezeNet_v1.1/train_val.prototxt")
    published.from_database(published.encoded(4), batch=4)

    expect_falling(published.losses(0.002, 12))


def test_network_in_network(published):
    published.read(
        "prototxt/mrgloom+kaggle-dogs-vs-cats-solution/learning_from_scratch/NetworkInNetwork/"
        "train_val.prototxt"
    )
    published.from_database(published.encoded(4), batch=4)
    published.source.transform_param.ClearField("mean_file")  # the photos differ in size
    published.source.transform_param.mean_value.extend(BGR_MEANS)

    expect_falling(published.losses(0.002, 10))


def test_resnet10_reads_a_list_of_images(published):
    published.read("prototxt/cvjena+cnn-models/ResNet_preact/ResNet10_cvgj/train.prototxt")
    images = published.images(4)
    lines = [f"{path.name} {label}" for path, label in images]
    for path, _ in images:
        shutil.copy(path, published.folder)
    (published.folder / "train.txt").write_text("\n".join(lines))
    p = published.source.image_data_param
    p.source, p.root_folder = str(published.folder / "train.txt"), f"{published.folder}/"
    p.batch_size, p.new_height, p.new_width = 4, 256, 256

    expect_falling(published.losses(0.01, 10))


@pytest.mark.usefixtures("_user_modules")
def test_lrcn_reads_clips_in_python(published):
    net = published.read(
        "prototxt/LisaAnne+lisa-caffe-public/examples/LRCN_activity_recognition/"
        "train_test_lstm_RGB.prototxt"
    )
    (published.folder / "sequence_input_layer.py").write_text(CLIPS)
    (published.folder / "images").mkdir()
    for path, _ in published.images(4):
        shutil.copy(path, published.folder / "images")
    for layer in net.layer:
        if layer.type == "Reshape":
            layer.reshape_param.shape.dim[:2] = [4, 1]

    expect_falling(published.losses(0.001, 10))

"""Images in, probabilities out: ``caffe.Classifier``."""

import numpy as np
import pytest
from expect_error import expect_error

import demitasse.compat.pycaffe as caffe
from demitasse.compat.pycaffe import io

NET = """
layer { name: "data" type: "Input" top: "data"
        input_param { shape { dim: 4 dim: 3 dim: 2 dim: 3 } } }
layer { name: "mean" type: "Pooling" bottom: "data" top: "mean"
        pooling_param { pool: AVE global_pooling: true } }
"""

rng = np.random.default_rng(5)


@pytest.fixture
def files(tmp_path):
    """A net that averages each channel, and its weights, of which it has none."""
    (tmp_path / "net.prototxt").write_text(NET)
    caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST).save(str(tmp_path / "w.caffemodel"))
    return str(tmp_path / "net.prototxt"), str(tmp_path / "w.caffemodel")


def test_whole_images_are_looked_at_by_default(files):
    images = rng.random((6, 5, 8, 3))

    found = caffe.Classifier(*files).predict(images, oversample=False)

    expected = [io.resize_image(p, (2, 3)).mean((0, 1)) for p in images]
    assert found.shape == (6, 3, 1, 1)
    np.testing.assert_allclose(found[..., 0, 0], expected, rtol=1e-5)


def test_the_centre_is_cut_out(files):
    image = rng.random((4, 7, 3))

    found = caffe.Classifier(*files, image_dims=(4, 7)).predict([image], oversample=False)

    np.testing.assert_allclose(found[0, :, 0, 0], image[1:3, 2:5].mean((0, 1)), rtol=1e-5)


def test_views_are_averaged(files):
    image = rng.random((4, 7, 3))

    found = caffe.Classifier(*files, image_dims=[4, 7]).predict([image, image * 2])

    views = io.oversample([image], (2, 3))
    assert found.shape == (2, 3)
    np.testing.assert_allclose(found[0], views.mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(found[1], found[0] * 2, rtol=1e-5)


def test_images_are_prepared_as_told(files):
    image = np.tile(np.array([0.1, 0.2, 0.3]), (2, 3, 1))
    classifier = caffe.Classifier(
        *files,
        mean=np.array([1.0, 2.0, 3.0]),
        input_scale=0.5,
        raw_scale=10,
        channel_swap=(2, 1, 0),
    )

    found = classifier.predict([image], oversample=False)

    np.testing.assert_allclose(found.ravel(), [1.0, 0.0, -1.0], atol=1e-6)


def test_the_input_must_fit_into_the_image(files):
    classifier = caffe.Classifier(*files, image_dims=(1, 3))

    with expect_error(ValueError, mentions="image_dims"):
        classifier.predict([np.zeros((4, 4, 3))], oversample=False)
    with expect_error(ValueError, mentions="1 x 3"):
        classifier.predict([np.zeros((4, 4, 3))])


def test_squeezenet_recognises_the_cat_as_recorded(reference_data):
    """Caffe's own five best classes and scores for this photo."""
    folder = reference_data / "models" / "squeezenet10_imagenet"
    recorded = np.load(reference_data / "refs" / "squeezenet10_imagenet" / "caffe.npz")
    scores = recorded["pool_final"].ravel()
    classifier = caffe.Classifier(
        str(folder / "SqueezeNet_deploy.prototxt"),
        str(folder / "decompressed_SqueezeNet.caffemodel"),
        mean=np.array([104.0, 117.0, 123.0]),
        raw_scale=255,
        channel_swap=(2, 1, 0),
    )
    photo = io.load_image(reference_data / "images" / "cat.jpg")

    found = classifier.predict([photo], oversample=False).ravel()

    best = scores.argsort()[:-6:-1]
    np.testing.assert_array_equal(found.argsort()[:-6:-1], best)
    # the recorded input was resized by other code, up to a grey level apart
    np.testing.assert_allclose(found[best], scores[best], rtol=0.01)

"""A normalisation by the batch's statistics and its gradients, on arrays, against numpy."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from stages import WIDE, WIDTH, in_memory, normal, out_of_memory

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels import planes
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.norm import Normalization, NormalizationGradient
from demitasse.backends.kernels.planes import Lanes, takes
from demitasse.backends.kernels.tuning import Tuning

EPS = 1e-5
RELU = pytest.mark.parametrize("relu", [False, True], ids=["plain", "relu"])
PLAIN = pytest.mark.parametrize("plain", [False, True], ids=["channels last", "C order"])


def scratch(kernel):
    """Return the scratch memory of a kernel, if it takes any."""
    return [aligned(kernel.scratch_size)] * (kernel.scratch_size > 0)


class Case:
    """Images with factors, offsets and a gradient, and what our kernels make of them."""

    def __init__(self, shape, width, *, relu, threads=1, plain=False, x=None, stored=False):
        self.images = (Images.in_order if plain else Images.channels_last)(shape)
        self.x = normal(*shape) * 3 + 2 if x is None else x
        self.factors, self.offsets = normal(shape[1], seed=1), normal(shape[1], seed=2)
        self.dy, self.relu, self.stored = normal(*shape, seed=3), relu, stored
        tuning = Tuning(width=width, threads=threads)
        run = self.run = Normalization(self.images, EPS, tuning, relu=relu, stored=stored)
        if stored:
            run.mean[...], run.variance[...] = self.x.mean((0, 2, 3)), self.x.var((0, 2, 3))
            run.inverse[...] = 1 / np.sqrt(run.variance + EPS)
        source, target = in_memory(self.x, self.images), np.full(self.x.size, np.nan, np.float32)
        run(source, target, self.factors, self.offsets, *scratch(run))
        self.y = out_of_memory(target, self.images)
        gradient = in_memory(self.dy, self.images)
        self.gradients = np.empty((2, shape[1]), np.float32)
        back = NormalizationGradient(run)
        parameters = self.factors, self.offsets, *self.gradients
        back(source, gradient, gradient, *parameters, *scratch(back))
        self.dx = out_of_memory(gradient, self.images)

    def check(self):
        """Compare with float64."""
        x, dy = self.x.astype(float), self.dy.astype(float)
        factors, offsets = (row[:, None, None] for row in (self.factors, self.offsets))
        mean = x.mean((0, 2, 3), keepdims=True)
        variance = x.var((0, 2, 3), keepdims=True)
        inverse = 1 / np.sqrt(variance + EPS)
        y = (x - mean) * inverse * factors + offsets
        dy = np.where(self.y > 0, dy, 0) if self.relu else dy
        normed = (x - mean) * inverse
        of_factors, of_offsets = (dy * normed).sum((0, 2, 3)), dy.sum((0, 2, 3))
        count = x.size / x.shape[1]
        level = (of_offsets[:, None, None] + normed * of_factors[:, None, None]) / count
        dx = factors * inverse * (dy if self.stored else dy - level)
        close = {"rtol": 2e-5, "atol": 2e-5}
        np.testing.assert_allclose(self.run.mean, mean.reshape(-1), **close)
        np.testing.assert_allclose(self.run.variance, variance.reshape(-1), **close)
        np.testing.assert_allclose(self.run.inverse, inverse.reshape(-1), **close)
        np.testing.assert_allclose(self.y, np.maximum(y, 0) if self.relu else y, **close)
        np.testing.assert_allclose(self.gradients[0], of_factors, rtol=2e-5, atol=2e-4)
        np.testing.assert_allclose(self.gradients[1], of_offsets, rtol=2e-5, atol=2e-4)
        np.testing.assert_allclose(self.dx, dx, rtol=2e-5, atol=1e-4)


@WIDTH
@RELU
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [(1, 1), (1, 3), (5, 7), (13, 12)])
def test_statistics_outputs_and_gradients_are_those_of_numpy(size, threads, relu, width):
    Case((3, 3 * width, *size), width, relu=relu, threads=threads).check()


@WIDTH
@RELU
@pytest.mark.parametrize("stored", [False, True], ids=["batch", "stored"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (3, 5), (7, 7), (20, 13)])
def test_c_order_has_pixels_for_channels(size, threads, stored, relu, width):
    shape = (3, 5, *size)

    Case(shape, width, relu=relu, threads=threads, plain=True, stored=stored).check()


@WIDTH
@PLAIN
@pytest.mark.parametrize("arrays", [2, 3], ids=["averages", "sums"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("vectors", [1, 2.5, 3, 8])
def test_running_averages_have_the_bits_of_the_portable_formula(
    vectors, threads, arrays, plain, width
):
    channels = int(vectors * width)
    images = (Images.in_order if plain else Images.channels_last)((3, channels, 3, 5))
    tuning = Tuning(width=width, threads=threads)
    run = Normalization(images, EPS, tuning, relu=False, averages=arrays)
    run.shares[...] = kept, *shares = np.array([0.9, 0.1, 0.1 * 45 / 44], np.float32)
    averages = [normal(channels, seed=4), normal(channels, seed=5), normal(1, seed=6)][:arrays]
    before = [average.copy() for average in averages]
    x, ones = normal(3 * channels * 15), np.ones(channels, np.float32)

    run(x, x.copy(), ones, ones, *averages, *scratch(run))

    added = run.mean * shares[0], run.variance * shares[1], np.float32(1.0)
    for average, old, more in zip(averages, before, added, strict=False):
        np.testing.assert_array_equal(average, old * kept + more)


@WIDTH
@RELU
@pytest.mark.parametrize("stored", [False, True], ids=["batch", "stored"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("vectors", [5, 6, 8])
def test_many_channels_side_by_side_are_gone_through_in_groups(
    vectors, threads, stored, relu, width
):
    channels = vectors * width

    Case((3, channels, 3, 5), width, relu=relu, threads=threads, stored=stored).check()


@WIDTH
@RELU
@pytest.mark.parametrize("stored", [False, True], ids=["batch", "stored"])
@pytest.mark.parametrize("vectors", [1, 3, 4, 8, 2.5, 6.5])
def test_large_images_are_read_in_bands(vectors, stored, relu, width, monkeypatch):
    shape = 2, int(vectors * width), 36, 29
    for name, value in {"SHARED_BYTES": 0, "BAND_BYTES": 0, "BAND_PIXELS": 200}.items():
        monkeypatch.setattr(planes, name, value)
    lanes = Lanes.of(Images.channels_last(shape), width)

    cases = [Case(shape, width, relu=relu, threads=n, stored=stored) for n in (1, 3)]

    bands, lanes = lanes.in_bands(cases[0].images)
    assert lanes.banded == (bands.shape[0] > 2) == (lanes.groups(bands) > 1)
    cases[0].check()
    for name in ("y", "dx", "gradients"):
        np.testing.assert_array_equal(getattr(cases[1], name), getattr(cases[0], name))


@WIDTH
def test_images_of_a_prime_number_of_pixels_have_no_bands(width, monkeypatch):
    for name, value in {"SHARED_BYTES": 0, "BAND_BYTES": 0, "BAND_PIXELS": 200}.items():
        monkeypatch.setattr(planes, name, value)
    images = Images.channels_last((1, 8 * width, 1, 1009))
    lanes = Lanes.of(images, width)

    assert lanes.in_bands(images) == (images, lanes)


@WIDTH
@PLAIN
def test_a_gradient_of_the_images_alone_reads_no_sums(plain, width):
    shape = (2, 2 * width, 4, 5)
    case = Case(shape, width, relu=True, plain=plain, stored=True)
    x, dx = (in_memory(array, case.images) for array in (case.x, case.dy))
    nothing = np.zeros((2, shape[1]), np.float32)
    gradient = NormalizationGradient(case.run, learns=False)

    parameters = case.factors, case.offsets, *nothing
    gradient(x, dx, dx, *parameters)

    np.testing.assert_array_equal(out_of_memory(dx, case.images), case.dx)
    assert not nothing.any()


@WIDTH
def test_the_bits_are_the_same_for_any_number_of_threads(width):
    cases = [Case((5, 3 * width, 9, 9), width, relu=True, threads=n) for n in (1, 2, 3)]

    for one, name in product(cases[1:], ("y", "dx", "gradients")):
        np.testing.assert_array_equal(getattr(one, name), getattr(cases[0], name))


@WIDTH
@PLAIN
@pytest.mark.parametrize("outlier", [0, 200])
def test_variances_are_right_far_from_zero_and_beside_an_outlier(outlier, plain, width):
    x = normal(2, width, 20, 20) + 300
    x[0, :, 0, outlier // 20] += 1e4

    run = Case(x.shape, width, relu=False, x=x, plain=plain).run

    variance = x.astype(float).var((0, 2, 3))
    np.testing.assert_allclose(run.variance, variance, rtol=1e-4)


@WIDE
@RELU
@PLAIN
def test_nan_takes_its_channel_and_no_other(plain, relu, width):
    x = normal(2, width, 3, 3)
    x[1, 4, 2, 2] = np.nan
    x[0, 6, 1, 0] = np.inf

    y = Case(x.shape, width, relu=relu, x=x, plain=plain).y

    assert np.isnan(y[:, [4, 6]]).all()
    assert np.isfinite(np.delete(y, [4, 6], axis=1)).all()


@WIDE
@RELU
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("channels", [1, 4, "all but one", "many"])
def test_the_last_vector_may_be_a_part_of_one(channels, threads, relu, width):
    rest = {"all but one": width - 1, "many": 7 * width + 3}.get(channels, channels)
    shape = (3, 2 * width + rest, 5, 7)
    assert takes(Images.channels_last(shape), width)

    Case(shape, width, relu=relu, threads=threads).check()


@WIDTH
@pytest.mark.parametrize("fault", ["few", "far apart"])
def test_less_than_a_vector_and_pixels_far_apart_are_refused(fault, width):
    count = {"few": width - 1, "far apart": width}[fault]
    images = Images.channels_last((1, count, 2, 2))
    if fault == "far apart":
        images = replace(images, row_stride=3 * images.row_stride)

    assert not takes(images, width)
    with pytest.raises(ValueError, match="whole vectors"):
        Normalization(images, EPS, Tuning(width=width), relu=False)


def test_code_names_the_instructions():
    run = Normalization(Images.channels_last((1, 16, 2, 2)), EPS, Tuning(width=16), relu=False)

    assert run.code == "norm llvm:avx512"
    assert NormalizationGradient(run).code == "norm gradient llvm:avx512"

"""How the values of blobs are distributed, on every backend."""

import numpy as np
import pytest

from demitasse import Blob
from demitasse.blob import distribution as module
from demitasse.blob.distribution import distribution

VALUES = np.linspace(-1, 3, 240, dtype=np.float32)


@pytest.fixture
def blob(backend):
    made = Blob((2, 3, 4, 10), device=backend)
    made.mutable_cpu_data()[...] = VALUES.reshape(made.shape)
    return made


def multiply_there(blob, factor):
    """Let the blob's values be newest on its device."""
    with blob.device.backend.device_scope():
        blob.write(blob.read() * factor)


def test_ends_mean_and_norm_are_those_of_all_values(blob):
    found = distribution(blob)

    assert (found.low, found.high) == (-1, 3)
    assert found.mean == pytest.approx(1, rel=1e-5)
    assert found.norm == pytest.approx(float(np.linalg.norm(VALUES)), rel=1e-5)
    assert sum(found.counts) == found.count == found.sampled == 240


def test_values_newest_on_the_device_are_found_there(blob):
    multiply_there(blob, 2)

    assert distribution(blob).high == 6


def test_a_gradient_is_one_of_its_own(blob):
    assert distribution(blob, diff=True) is None

    blob.mutable_cpu_diff()[...] = 0.5

    assert distribution(blob, diff=True).mean == 0.5


def test_of_many_values_some_make_the_histogram(blob, monkeypatch):
    monkeypatch.setattr(module, "MOST_SAMPLED", 60)

    found = distribution(blob)

    assert (found.sampled, sum(found.counts), found.count) == (60, 60, 240)
    assert found.high == 3  # which the sample lacks


def test_what_is_not_finite_is_counted(blob):
    blob.mutable_cpu_data()[0, 0, 0, :3] = [np.nan, np.inf, -np.inf]

    found = distribution(blob)

    assert found.nonfinite == 3
    assert sum(found.counts) == 237
    assert np.isfinite(found.edges).all()


def test_nothing_is_known_of_what_was_never_written(backend):
    assert distribution(Blob((2, 3), device=backend)) is None
    assert distribution(Blob((0, 3), device=backend)) is None


def test_nothing_is_copied_for_it(blob):
    multiply_there(blob, 1)
    head = blob.data_memory.head

    distribution(blob)

    assert blob.data_memory.head is head


def test_no_more_than_the_sample_leaves_a_device(blob, monkeypatch):
    backend, moved = blob.device.backend, []
    if blob.device.shares_host:
        pytest.skip("its memory is the host's")
    multiply_there(blob, 1)
    to_host = backend.to_host
    monkeypatch.setattr(backend, "to_host", lambda a: moved.append(a.shape) or to_host(a))
    monkeypatch.setattr(module, "MOST_SAMPLED", 60)

    distribution(blob)

    assert moved == [(60,)]

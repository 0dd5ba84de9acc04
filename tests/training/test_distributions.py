"""Loggers are told how weights and gradients are distributed."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Solver
from demitasse.errors import ConfigError, ErrorCode
from demitasse.training.report import log_histograms
from demitasse.training.tracking.services import histograms


class Kept:
    """A logger that keeps what it is told."""

    def __init__(self):
        self.numbers, self.events = {}, {}

    def scalars(self, iteration, values):
        self.numbers.setdefault(iteration, {}).update(values)

    def event(self, iteration, kind, facts):
        self.events.setdefault(kind, {})[iteration] = facts

    def close(self):
        pass


@pytest.fixture
def told(fields):
    """Train, and return the solver and what its logger was told."""

    def train(iterations, every, **options):
        solver, kept = Solver(fields(), **options), Kept()
        solver.loggers.append(kept)
        log_histograms(solver, every)
        solver.step(iterations)
        return solver, kept

    return train


def test_they_come_every_so_many_iterations(told):
    _, kept = told(6, 2)

    assert sorted(kept.events["distributions"]) == [0, 2, 4]
    assert [at for at in kept.numbers if "gradient_norm" in kept.numbers[at]] == [0, 2, 4]


def test_every_parameter_and_its_gradient_are_told(told, backend):
    solver, kept = told(1, 1, device=backend)

    found = dict(histograms(kept.events["distributions"][0]))
    names = [
        f"{layer}/{i}" for layer, blobs in solver.net.params.items() for i in range(len(blobs))
    ]

    assert {f"gradients/{name}" for name in names} <= set(found)
    norms = [one.norm for name, one in found.items() if name.startswith("gradients")]
    assert kept.numbers[0]["gradient_norm"] == pytest.approx(np.linalg.norm(norms))


def test_training_is_the_same_to_the_bit(told, fields):
    solver, _ = told(5, 2)
    alone = Solver(fields())
    alone.step(5)

    for layer, blobs in solver.net.params.items():
        for one, other in zip(blobs, alone.net.params[layer], strict=True):
            assert np.array_equal(one.data, other.data)


def test_nobody_listens_in_between(told):
    solver, _ = told(4, 3)
    assert solver.on_gradients_ready

    solver.step(1)

    assert not solver.on_gradients_ready


def test_every_is_at_least_one(fields):
    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, got=0):
        log_histograms(Solver(fields()), 0)

"""Histograms in the facts of an event, which may come from a file."""

import math

import pytest

from demitasse.training.tracking.services import histograms

FOUND = {
    "low": -1, "high": 3, "mean": 0.5, "norm": 2, "count": 8, "edges": [-1, 0, 1, 3],
    "counts": [2, 0, 6],
}  # fmt: skip


def read(**changed):
    return dict(histograms({"parameters": {"ip/0": {"weights": FOUND | changed}}}))


def test_a_histogram_has_the_name_of_its_parameter():
    [(name, found)] = read().items()

    assert name == "weights/ip/0"
    assert (found.low, found.high, found.count, found.counts) == (-1, 3, 8, (2, 0, 6))


@pytest.mark.parametrize(
    ("share", "value"), [(0, -1), (0.125, -0.5), (0.25, 0), (0.625, 2), (1, 3)]
)
def test_quantiles_lie_within_bars(share, value):
    assert read()["weights/ip/0"].quantile(share) == pytest.approx(value)


@pytest.mark.parametrize(
    "changed",
    [
        {"edges": [0, 1]},
        {"edges": [0, 2, 1, 3]},
        {"counts": []},
        {"counts": [0, 0, 0]},
        {"counts": [-1, 0, 2]},
        {"counts": "many"},
        {"edges": None},
        {"low": []},
        {"count": 1e400},
        {"edges": [0, 1, 2, {}]},
    ],
)
def test_what_is_none_is_passed_over(changed):
    assert not read(**changed)


@pytest.mark.parametrize("facts", [{}, {"parameters": 3}, {"parameters": {"a": 1}}])
def test_facts_without_any_are_passed_over(facts):
    assert not dict(histograms(facts))


def test_ends_that_are_not_finite_are_kept():
    assert math.isnan(read(low="nan")["weights/ip/0"].low)

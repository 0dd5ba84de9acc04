"""The speed of a net relative to its peers."""

from dataclasses import replace
from pathlib import Path

from demitasse.benchmark import Result
from demitasse.benchmark.case import Case
from demitasse.benchmark.results import results_table

CASE = Case(Path("deploy.prototxt"), "cpu", 1, "TEST")


def result(device, rounds, batch=1, error=""):
    """A measurement whose rounds have one pass each."""
    return Result(replace(CASE, device=device, batch=batch), [*rounds], rounds=rounds, error=error)


def test_the_ratio_is_the_median_of_the_rounds_beside_the_fastest_peer():
    ours = result("cpu", [1.0, 2.0, 2.0])
    peers = [
        result("onnxruntime", [3.0, 3.0, 6.0]),
        result("openvino", [4.0, 8.0, 8.0]),
        result("onnxruntime", [0.1, 0.1, 0.1], batch=8),
    ]

    head, rows = results_table([ours, *peers])

    assert head[-1] == "of best peer"
    assert [row[-1] for row in rows] == ["3.00", "-", "-", "-"]


def test_a_net_whose_peers_failed_has_no_ratio():
    _, rows = results_table([result("cpu", [1.0]), result("openvino", [], error="no memory")])

    assert [row[-1] for row in rows] == ["-", "-"]

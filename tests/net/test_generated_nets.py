"""Nets that nobody wrote, and pairs of layers: fast results against portable code in float64.

``nox -s nets`` runs thousands of them.
"""

import subprocess
import sys
from dataclasses import replace
from itertools import chain, islice

import pytest

if sys.platform == "win32":
    pytest.skip("arrays are guarded by calls of POSIX", allow_module_level=True)

import net_oracle
from layer_pairs import pairs
from net_case import Case, Input, Layer, NetSpec, Scenario, case_from_json, case_to_json
from net_generator import generate
from net_shrinker import shrink
from net_workers import run_cases

from demitasse.core.config import settings

PARTS = 4
NETS = [*(("small", number) for number in range(28)), *(("medium", number) for number in range(8))]
APART = 197
"""Of so many pairs of layers one runs here."""

TWO_LAYERS = Case(
    "two layers",
    5,
    NetSpec(
        (Input("x", (2, 3, 6, 6)),),
        (
            Layer("c", "Convolution", ("x",), ("c",), {"convolution_param": {
                "num_output": 4, "kernel_size": 3}}),
            Layer("r", "ReLU", ("c",), ("r",)),
        ),
    ),
    Scenario("TEST", None, (("threads", 2), ("forward", 0), ("forward", 1))),
)  # fmt: skip


@pytest.fixture(autouse=True)
def threads():
    """Restore the setting that the oracle changes."""
    yield
    settings.set("threads", None)


@pytest.mark.parametrize("part", range(PARTS))
def test_generated_nets_compute_what_portable_code_does(part):
    cases = [generate(number, size) for size, number in NETS[part::PARTS]]

    outcomes = list(run_cases(cases))

    assert [(case.name, found["failure"]) for case, found in outcomes if found["failure"]] == []
    assert [(case.name, found["refused"]) for case, found in outcomes if found["refused"]] == []
    assert len(outcomes) == len(cases)


def test_pairs_of_layers_compute_what_portable_code_does():
    cases = list(islice(pairs("small"), 0, None, APART))

    outcomes = list(run_cases(cases))

    assert [(case.name, found["failure"]) for case, found in outcomes if found["failure"]] == []
    assert [(case.name, found["refused"]) for case, found in outcomes if found["refused"]] == []


def test_a_case_follows_from_its_number_and_survives_json():
    for case in chain((generate(number) for number in range(40)), islice(pairs("large"), 40)):
        assert case_to_json(case_from_json(case_to_json(case))) == case_to_json(case)

    assert case_to_json(generate(3)) == case_to_json(generate(3))
    assert case_to_json(generate(3)) != case_to_json(generate(4))


def test_one_wrong_element_is_seen(monkeypatch):
    fast = net_oracle.Runs.fast

    def wrong(runs, like):
        log = fast(runs, like)
        log.steps[-1][1]["r"].flat[7] += 1e-3
        return log

    monkeypatch.setattr(net_oracle.Runs, "fast", wrong)

    verdict = net_oracle.check(TWO_LAYERS)

    assert verdict.failure.kind == "differs"
    assert "1 of 128 elements" in verdict.failure.text


def test_nothing_is_wrong_with_two_layers():
    verdict = net_oracle.check(TWO_LAYERS)

    assert verdict.failure is None
    assert verdict.refused == ""
    assert verdict.explained == 0


def test_portable_code_refuses_what_is_no_net():
    layers = (replace(TWO_LAYERS.net.layers[0], bottoms=("y",)),)

    verdict = net_oracle.check(replace(TWO_LAYERS, net=replace(TWO_LAYERS.net, layers=layers)))

    assert "unknown bottom blob 'y'" in verdict.refused


def test_the_shrinker_leaves_what_is_needed_to_fail():
    class Fails:
        """Runs that fail where a net has a Pooling layer of more than one image."""

        def run(self, case):
            types = [layer.type for layer in case.net.layers]
            wrong = "Pooling" in types and case.net.inputs[0].shape[0] > 1
            return {"failure": ["differs", ""] if wrong else None}

        def close(self):
            pass

    found = next(
        case
        for case in (generate(number, "small") for number in range(100))
        if Fails().run(case)["failure"] and len(case.net.layers) > 8 and not case.scenario.shapes
    )

    smallest = shrink(found, "differs", 60, Fails())

    assert [layer.type for layer in smallest.net.layers] == ["Pooling"]
    assert smallest.net.inputs[0].shape[0] == 2
    assert len(smallest.scenario.steps) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="pages are protected as on Linux")
@pytest.mark.parametrize("place", ["past the end", "freed"])
def test_memory_that_is_not_an_arrays_cannot_be_touched(place):
    code = f"""
import ctypes, sys
sys.path[:0] = {sys.path!r}
import guarded_arrays, numpy as np
guarded_arrays.start()
with guarded_arrays.guarded():
    array = np.empty(10_000, np.float32)
assert np.isnan(array).all()
address = array.ctypes.data
if {place!r} == "freed":
    del array
else:
    address += array.nbytes + 16
ctypes.memset(address, 0, 4)
"""

    run = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)

    assert run.returncode == -11, run.stderr

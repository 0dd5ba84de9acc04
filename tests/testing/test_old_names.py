"""Old names of comparisons and exports, which work and warn once."""

import subprocess
import sys

import pytest

CASES = {
    "classes": """
from demitasse import testing
assert testing.Gap is testing.ErrorStats and testing.open_other is testing.open_reference
""",
    "modules": """
from demitasse.testing.against import compare_model
from demitasse.testing.differences import Difference
from demitasse.testing.others import open_reference
from demitasse.testing.training import compare_training
from demitasse import testing
assert testing.Difference is Difference and testing.compare_training is compare_training
""",
    "attributes": """
from demitasse.testing import Comparison, Difference, ErrorStats
one = Difference("ip", "InnerProduct", "top 'ip'", "cpu", ErrorStats(0.5, 0.25))
found = Comparison("numpy", ["cpu"], [one], [one])
assert one.gap is one.stats and found.together is found.fused
assert found.rows()[0].of("data") == {"cpu": one}
""",
    "layers": """
from demitasse.testing import make_layer
one = make_layer('type: "ReLU"', [[[1.0]]], lowered=False)
assert one.wanted == one.propagate_down == [True] and one.entry.step is None
with one.at_work():
    one.forward()
""",
    "exports": """
import demitasse.export
from demitasse.interop import export_torch
assert demitasse.export.export_torch is export_torch
""",
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_old_names_work_and_warn_once_each(name):
    command = [sys.executable, "-W", "always::DeprecationWarning", "-c", CASES[name] * 2]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    texts = [line.partition("DeprecationWarning: ")[2] for line in done.stderr.splitlines()]
    warnings = [text for text in texts if text]
    assert warnings
    assert len(set(warnings)) == len(warnings)

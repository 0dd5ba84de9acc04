"""Keeping outputs alone is never more work on device cpu than keeping all blobs."""

import pytest
from nets import FORWARD_ONLY, NETS, OTHERS
from zeros import fill_with_zeros

from demitasse import Net
from demitasse.backends.cpu import slow_reason
from demitasse.io.proto import NetParameter, parse_text
from demitasse.memory import transfers

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())

QUICK = ("lenet", "googlenet", "mobilenet", "resnet18", "squeezenet", "ssd_mobilenet")

HALF = 2
"""What widths are divided by; layouts are chosen as for whole ones."""


def conversions(text, keep):
    """Return how often a pass with new inputs brings a blob into another layout."""
    net = Net(parse_text(text, NetParameter), "TEST", device="cpu", seed=1, keep_blobs=keep)
    for _ in range(3):  # parameters have their layouts then
        before = transfers.reorders
        for name in net.inputs:
            net.blobs[name].mutable_cpu_data()
        net.forward()
    return transfers.reorders - before


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else pytest.mark.exhaustive)
        for name in (*NETS, *FORWARD_ONLY, *OTHERS)
    ],
)
def test_keeping_outputs_alone_converts_no_more_layouts(name, monkeypatch):
    fill_with_zeros(monkeypatch)  # what is converted does not depend on values
    text = {**NETS, **FORWARD_ONLY, **OTHERS}[name](1, False, HALF)

    everything, outputs = conversions(text, None), conversions(text, "outputs")

    assert outputs <= everything

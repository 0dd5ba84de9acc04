"""The page about scaling, and the model that it is computed by."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

from scaling_model import BUCKET, Network, Work, efficiency
from scaling_page import scaling_page

SLOW = Network(bandwidth=1e6, latency=0.0)
TWO = Work(before=1.0, layers=[(1.0, 2.0 * BUCKET), (1.0, 1.0 * BUCKET)])


def test_one_machine_waits_for_nobody():
    assert efficiency(TWO, SLOW, 1, overlap=False) == 1


def test_gradients_behind_backward_cost_their_time():
    network = Network(3 * BUCKET, 0.0)

    share = efficiency(TWO, network, 2, overlap=False, jitter=0.0)

    assert share == pytest.approx(3 / 4)  # 2 (2 - 1) / 2 of three buckets, at three a second


def test_beside_backward_only_what_is_left_does():
    network = Network(3 * BUCKET, 0.0)

    share = efficiency(TWO, network, 2, overlap=True, jitter=0.0)

    # the first part takes 2/3 s of the second layer's 1 s, the second 1/3 s behind it
    assert share == pytest.approx(3 / (3 + 1 / 3))


def test_short_messages_cost_their_latency():
    share = efficiency(TWO, Network(1e30, 0.5), 3, overlap=False, jitter=0.0)

    assert share == pytest.approx(3 / (3 + 2 * 4 * 0.5))  # two parts, and one without bytes: none


def test_faster_machines_wait_for_longer_and_half_the_bytes_for_less():
    network = Network(3 * BUCKET, 0.0)

    plain, fast, narrow = (
        efficiency(work, network, 8, overlap=True) for work in (TWO, TWO.faster(10), TWO.narrowed())
    )

    assert fast < plain < narrow


def test_the_page_has_a_chart_for_each_net(tmp_path):
    layers = [{"layer": "ip", "backward": 0.01, "bytes": 4000}]
    found = {"cores": 2, "nets": {"lenet": {"batch": 64, "forward": 0.01, "layers": layers}}}
    (tmp_path / "times.json").write_text(json.dumps(found))

    page = scaling_page(tmp_path / "times.json")

    assert page.count("<svg") == 1
    assert "LeNet, 64 images a machine" in page
    assert "| LeNet | 10 Gb/s Ethernet |" in page


def test_without_figures_it_says_so(tmp_path):
    assert "Nothing has been measured yet" in scaling_page(tmp_path / "none.json")

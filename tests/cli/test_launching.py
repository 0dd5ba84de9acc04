"""What is said of how a device is given a net's passes."""

import pytest
from cuda_host import cuda_at

from demitasse import Net
from demitasse.cli.timing import capture_status, measure_net, timing_table
from demitasse.core.config import settings


@pytest.fixture(params=[pytest.param("host", marks=pytest.mark.exhaustive), "cuda:0"])
def net(request, project):
    return Net("deploy.prototxt", "TEST", device=cuda_at(request.param))


def test_a_net_without_obstacles_is_launched_as_one(net):
    net.reshape()

    assert "captured as a CUDA graph" in capture_status(net)


def test_what_stands_in_the_way_is_said(net):
    net.reshape()
    net.after_forward.append(lambda index: None)

    said = capture_status(net)

    assert "callbacks" in said


def test_the_setting_stands_in_the_way(net):
    net.reshape()

    with settings.override(cuda_graphs="off"):
        said = capture_status(net)

    assert said.endswith("not captured as a CUDA graph: the setting cuda_graphs is off.")


def test_it_stands_below_the_times_of_layers(net):
    timing = measure_net(net, 1, backward=False)

    assert f"\n\n{capture_status(net)}\n\nTimes in ms." in timing_table(timing)


def test_a_device_that_records_nothing_has_nothing_said(project):
    net = Net("deploy.prototxt", "TEST", device="numpy")
    net.reshape()

    assert capture_status(net) == ""

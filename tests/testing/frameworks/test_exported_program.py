"""A net against the same net as PyTorch exports it."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: nox -s frameworks")

DIFF = "diff small.prototxt small.pt2 --weights small.caffemodel --device numpy"


class Small(torch.nn.Module):
    """The small net for PyTorch."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.pool = torch.nn.MaxPool2d(3, 2, ceil_mode=True)
        self.classes = torch.nn.Linear(36, 5)

    def forward(self, x):
        x = self.pool(torch.relu(self.norm(self.conv(x))))
        return torch.softmax(self.classes(x.flatten(1)), 1)


PLACES = {
    "conv.weight": "conv/0",
    "conv.bias": "conv/1",
    "norm.weight": "scale/0",
    "norm.bias": "scale/1",
    "norm.running_mean": "bn/0",
    "norm.running_var": "bn/1",
    "classes.weight": "ip/0",
    "classes.bias": "ip/1",
}


@pytest.fixture
def export(small):
    """Write small.pt2, with parameters that a test has changed."""

    def write(**changed):
        net = Small().eval()
        arrays = small | changed
        state = {name: torch.from_numpy(np.array(arrays[at])) for name, at in PLACES.items()}
        net.load_state_dict(state, strict=False)
        torch.export.save(torch.export.export(net, (torch.zeros(2, 3, 9, 9),)), "small.pt2")

    return write


def test_a_net_that_is_the_same(export, run):
    export()

    result = run(f"{DIFF} --trust --json")

    found = json.loads(result.stdout)
    compared = [one["what"] for one in found["differences"]]
    assert result.exit_code == 0, result.output
    assert "top 'conv' with 'conv' by name" in compared
    assert "top 'ip' with 'classes' by order" in compared
    assert "top 'prob' with 'softmax' by order" in compared
    assert "parameter 0 with 'norm.running_mean' by order" in compared
    assert len([what for what in compared if "parameter" in what]) == 8


def test_the_first_difference_is_explained(export, small, run):
    export(**{"conv/0": small["conv/0"] * np.float32(1.01)})

    result = run(f"{DIFF} --trust")

    assert result.exit_code == 1
    assert "layer 'conv' (Convolution), top 'conv' with 'conv' by name" in result.stdout
    assert "conv2d on small.pt2" in result.stdout


def test_a_file_that_may_run_code_wants_to_be_trusted(export, run):
    export()

    result = run(DIFF)

    assert result.exit_code == 3
    assert "--trust" in result.stderr

"""Pytest's plugin, in a project that is none of ours."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from demitasse.core.device import Device
from demitasse.testing.error_stats import RTOL, TYPES

NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
        inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss" loss_weight: 1 }
"""

OFF = '''
import numpy as np
import demitasse as dm
from demitasse.backends.numpy.backend import NumpyBackend


@dm.register_backend("off")
class Off(NumpyBackend):
    """Inner products that are off by a part in a hundred."""

    name = "off"
    lowerings = {}

    class xp:
        def __getattr__(self, name):
            return getattr(np, name)

        def matmul(self, a, b):
            return np.matmul(a, b) * np.float32(1.01)

    xp = xp()

    @classmethod
    def devices(cls):
        return ["off"]
'''


CUBE = """
import demitasse as dm
from demitasse.layers.base import Exactly


@dm.register_layer("Cube")
class Cube(dm.Layer):
    '''y = x^3.'''

    bottoms = tops = Exactly(1)

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        x = bottom[0].read()
        top[0].write(x * x * x)

    def backward(self, top, propagate_down, bottom):
        x = bottom[0].read()
        bottom[0].write_diff(3 * x * x * top[0].read_diff())
"""


@pytest.fixture
def project(tmp_path):
    """A folder with a net and a file of tests; a function that runs pytest there."""
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "off_backend.py").write_text(OFF)

    def run(text, *options):
        (tmp_path / "test_mine.py").write_text(text)
        # installed packages load the plugin by themselves; a checkout may not be installed
        plugin = ["-p", "demitasse.testing.plugin"] if not is_installed() else []
        plugin += ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]  # a hundred modules
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *plugin, "-v", *options],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    return run


def is_installed():
    from importlib.metadata import entry_points

    return any(point.name == "demitasse" for point in entry_points(group="pytest11"))


def test_a_net_is_held_against_the_first_device(project):
    code, said = project(
        "def test_net(assert_consistent):\n"
        "    found = assert_consistent('net.prototxt', ['numpy', 'cpu', 'readonly'])\n"
        "    assert found.devices == ['cpu', 'readonly']\n"
    )

    assert code == 0, said


@pytest.mark.skipif("half" not in Device("cpu").backend.storages, reason="needs 16-bit storage")
def test_a_net_of_16_bits_agrees_within_their_rounding(project):
    code, said = project(
        "import demitasse as dm\nimport numpy as np\n"
        "def test_net(assert_consistent):\n"
        "    net = dm.Net('net.prototxt', 'TEST', device='cpu', dtype='float16', seed=1)\n"
        "    between = {'data': np.full((2, 3), 1.0004)}  # half has 1 and 1.00098\n"
        "    found = assert_consistent(net, ['numpy', 'cpu'], inputs=between)\n"
        "    assert found.worst.relative > 1.5e-4\n"
    )

    assert code == 0, said


def test_devices_that_part_fail_the_test_and_say_where(project):
    code, said = project(
        "import off_backend\n"
        "def test_net(assert_consistent):\n"
        "    assert_consistent('net.prototxt', ['numpy', 'off'])\n"
        "def test_loose(assert_consistent):\n"
        "    assert_consistent('net.prototxt', ['numpy', 'off'], rtol=0.1)\n",
    )

    assert code == 1
    assert "1 failed, 1 passed" in said
    assert "layer 'ip' (InnerProduct), top 'ip'" in said
    assert "portable on off" in said


def test_a_test_runs_once_on_each_device(project):
    text = (
        "import pytest\nimport demitasse as dm\n"
        "def test_each(device):\n    dm.Net('net.prototxt', device=device).forward()\n"
        "@pytest.mark.devices('cpu', 'readonly')\n"
        "def test_marked(device):\n    dm.Net('net.prototxt', device=device).forward()\n"
        "@pytest.mark.devices('numpy', 'cpu')\n"
        "def test_layers(assert_consistent):\n"
        '    assert_consistent(\'layer { name: "a" type: "Input" top: "a" input_param '
        '{ shape { dim: 2 } } } layer { name: "b" type: "TanH" bottom: "a" top: "b" }\')\n'
    )

    code, said = project(text, "--demitasse-devices=numpy,readonly", "--strict-markers")

    assert code == 0, said
    assert all(name in said for name in ("test_each[numpy]", "test_each[readonly]"))
    assert all(name in said for name in ("test_marked[cpu]", "test_marked[readonly]"))


def test_a_device_that_is_not_there_skips_or_fails(project):
    text = "def test_each(device):\n    pass\n"

    skipped = project(text, "--demitasse-devices=numpy,strict:device9")
    failed = project(text, "--demitasse-devices=numpy,strict:device9", "--demitasse-require")

    assert skipped[0] == 0
    assert "1 passed, 1 skipped" in skipped[1]
    assert failed[0] == 1


def test_a_projects_own_fixture_of_the_name_is_left_alone(project):
    code, said = project(
        "import pytest\n"
        "@pytest.fixture(params=['a', 'b'])\n"
        "def device(request):\n    return request.param\n"
        "def test_mine(device):\n    assert device in 'ab'\n"
    )

    assert code == 0, said
    assert "2 passed" in said


def test_a_net_layer_and_backend_of_ones_own(project, tmp_path):
    before, loss = NET.rsplit("layer {", 1)
    cube = 'layer { name: "cube" type: "Cube" bottom: "ip" top: "cube" }\n'
    net = before + cube + "layer {" + loss.replace('bottom: "ip"', 'bottom: "cube"')
    (tmp_path / "cubed.prototxt").write_text(net)
    (tmp_path / "cube_layer.py").write_text(CUBE)
    text = (
        "import cube_layer, off_backend\n"
        "from demitasse.testing import check_gradients\n"
        "def test_gradients():\n"
        "    check_gradients('type: \"Cube\"', [[0.5, -1.0, 2.0]])\n"
        "def test_devices(assert_consistent):\n"
        "    found = assert_consistent('cubed.prototxt')\n"
        "    assert ['Cube'] == [row.type for row in found.rows() if row.layer == 'cube']\n"
        "def test_backend(assert_consistent):\n"
        "    assert_consistent('cubed.prototxt', ['numpy', 'off'], rtol=0.1)\n"
        "def test_backend_is_off(assert_consistent):\n"
        "    assert_consistent('cubed.prototxt', ['numpy', 'off'])\n"
    )

    code, said = project(text)

    assert code == 1
    assert "1 failed, 3 passed" in said, said
    assert "FAILED test_mine.py::test_backend_is_off" in said
    assert "layer 'ip' (InnerProduct), top 'ip'" in said


def test_the_tolerances_are_documented():
    text = (Path(__file__).parents[2] / "docs/reference/testing.md").read_text(encoding="utf-8")

    rows = re.findall(r"^\| (\w*float\d+|half) \| (\S+) \|$", text, re.MULTILINE)

    assert {name: float(value) for name, value in rows} == RTOL
    times = {"ten": 10, "three": 3}
    said = re.search(r"by more: (.*)\.", text)[1]
    found = {
        name: times[word]
        for names, word in re.findall(r"([\w ]+) by (ten|three) times", said)
        for name in names.split(" and ")
        for name in [name.strip()]
    }
    assert found == TYPES

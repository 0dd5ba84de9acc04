"""``demitasse device_query``: what CUDA says, in Caffe's words."""

import json
import sys
from types import SimpleNamespace

import pytest
from cli_errors import failed_with
from expect_error import expect_error

from demitasse.backends.cupy import CupyBackend
from demitasse.backends.cupy.library.properties import properties
from demitasse.errors import DeviceError, ErrorCode

PROPERTIES = {
    "name": b"Imaginary 9000\0\0", "totalGlobalMem": 1 << 33, "warpSize": 32, "major": 9,
    "minor": 0, "maxGridSize": (2147483647, 65535, 65535), "multiProcessorCount": 132,
    "kernelExecTimeoutEnabled": 0, "uuid": b"\x01\x02",
}  # fmt: skip


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine with GPUs 0 and 1."""
    runtime = SimpleNamespace(getDeviceProperties=lambda number: PROPERTIES | {"minor": number})
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(CupyBackend, "devices", classmethod(lambda cls: ["cuda:0", "cuda:1"]))


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(CupyBackend, "devices", classmethod(lambda cls: []))
    monkeypatch.setattr(CupyBackend, "missing", classmethod(lambda cls: "there is no driver"))


def test_lines_are_those_of_caffe(two_gpus, run):
    lines = run("device_query -gpu 0").stdout.splitlines()

    assert lines == [
        "Device id:                     0",
        "Major revision number:         9",
        "Minor revision number:         0",
        "Name:                          Imaginary 9000",
        "Total global memory:           8589934592",
        "Warp size:                     32",
        "Maximum dimension of grid:     2147483647, 65535, 65535",
        "Number of multiprocessors:     132",
        "Kernel execution timeout:      No",
    ]


@pytest.mark.parametrize("flags", ["", "-gpu all", "-gpu=0,1"])
def test_all_gpus(two_gpus, run, flags):
    found = json.loads(run(f"device_query --json {flags}").stdout)

    assert [gpu["id"] for gpu in found] == [0, 1]
    assert [gpu["minor"] for gpu in found] == [0, 1]
    assert "uuid" not in found[0]


def test_a_gpu_that_is_not_there(two_gpus, run):
    result = run("device_query -gpu 5")

    assert result.exit_code == 4
    failed_with(result, 4, ErrorCode.UNAVAILABLE, got=5, expected=[0, 1])


def test_a_number_that_is_none(two_gpus, run):
    assert run("device_query -gpu first").exit_code == 2


def test_no_gpu_says_why(no_gpu, run):
    result = run("device_query")

    assert result.exit_code == 4
    assert result.stderr == "error: there is no driver\n"


def test_properties_of_a_machine_without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)

    with expect_error(DeviceError, mentions="cuda:0"):
        properties(0)

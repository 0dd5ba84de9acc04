"""``demitasse doctor``: what is there, what is set, and what is amiss."""

import json
import sys
from importlib.metadata import version
from types import SimpleNamespace

import pytest
from cli_errors import failed_with
from cudnn_standin import Frontend
from expect_error import expect_error

from demitasse import __version__
from demitasse.backends.cupy import CupyBackend
from demitasse.backends.cupy.library.cudnn_library import status
from demitasse.backends.cupy.library.memory_pools import properties
from demitasse.cli.commands.doctor import LIBRARIES
from demitasse.core.config import TABLE
from demitasse.errors import DeviceError, ErrorCode


@pytest.fixture
def sound(monkeypatch):
    """An environment without the variables that doctor warns of."""
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "DEMITASSE_DEVICE"):
        monkeypatch.delenv(name, raising=False)


def examined(run) -> dict:
    return json.loads(run("doctor --json").stdout)


def test_versions_are_those_installed(sound, run):
    found = examined(run)

    assert found["demitasse"] == __version__
    assert found["python"].startswith(".".join(map(str, sys.version_info[:3])))
    assert found["libraries"]["numpy"] == version("numpy")
    assert found["libraries"]["protobuf"] == version("protobuf")


def test_libraries_that_are_missing_name_what_brings_them(sound, run, monkeypatch):
    monkeypatch.setitem(LIBRARIES, "h5py", ["no-such-distribution"])

    lines = [line.split() for line in run("doctor").stdout.splitlines()]

    assert ["h5py", "not", "installed", "(pip", "install", "'demitasse[hdf5]')"] in lines


def test_devices_that_are_missing_say_why(sound, run):
    devices = examined(run)["devices"]

    assert devices["cpu"] == ["cpu"]
    assert devices["numpy"] == ["numpy"]
    assert devices["cuda"]
    if not isinstance(devices["cuda"], list):
        assert "cupy" in devices["cuda"]


def test_every_setting_says_where_it_is_from(sound, run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demitasse.toml").write_text("seed = 5\n")
    monkeypatch.setenv("DEMITASSE_OPTIMIZE", "0")

    found = examined(run)["settings"]

    assert list(found) == list(TABLE)
    assert found["optimize"] == {"value": False, "where": "DEMITASSE_OPTIMIZE"}
    assert found["seed"]["value"] == 5
    assert found["seed"]["where"].endswith("demitasse.toml")
    assert found["debug_fill_stale"]["where"] == "default"


def test_all_of_it_is_shown(sound, run):
    result = run("doctor")

    assert result.exit_code == 0
    assert all(name in result.stdout for name in TABLE)
    assert "no problems found" in result.stdout


def test_a_blas_that_was_told_what_to_use_is_a_problem(sound, run, monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")

    result = run("doctor")

    assert result.exit_code == 1
    assert "problem: OPENBLAS_CORETYPE=Haswell" in result.stdout


def test_a_cache_of_kernels_that_cannot_be_written_is_a_problem(sound, run, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    [problem] = examined(run)["problems"]

    assert "file/demitasse/kernels (" in problem
    assert "XDG_CACHE_HOME" in problem


def test_a_device_that_cannot_be_used_is_a_problem(sound, run, monkeypatch):
    monkeypatch.setenv("DEMITASSE_DEVICE", "cuda:77")

    [problem] = examined(run)["problems"]

    assert problem.startswith("DEMITASSE_DEVICE ")
    assert "'cuda:77'" in problem


def test_the_kernels_of_numpys_blas_are_asked_for(sound, run):
    blas = examined(run)["blas"]

    if "openblas" not in str(blas["name"]):
        pytest.skip(f"numpy uses {blas['name']}")
    assert blas["kernel"]


def test_whether_cudnn_loads_is_told(sound, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "cudnn", Frontend())
    status.cache_clear()
    shown = run("doctor").stdout
    monkeypatch.setitem(sys.modules, "cudnn", None)
    status.cache_clear()
    missing = examined(run)["cudnn"]
    status.cache_clear()

    assert "9.28.1, by its frontend 1.32.0" in shown
    assert not missing["loaded"]
    assert "demitasse[cudnn13]" in missing["reason"]


@pytest.mark.parametrize(("graph", "often"), [("auto", "where nothing stands"), ("off", "never")])
def test_whether_a_gpu_launches_passes_as_one_is_said(sound, run, monkeypatch, graph, often):
    monkeypatch.setenv("DEMITASSE_CUDA_GRAPHS", graph)

    [line] = [text for text in run("doctor").stdout.splitlines() if "as one launch" in text]

    assert often in line
    assert f"(setting cuda_graphs: {graph})" in line


# -- ``demitasse device_query``: what CUDA says, in Caffe's words --


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

"""What the cupy backend says of machines with and without cupy, a driver and GPUs."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from expect_error import expect_error

from demitasse.backends.cupy import CupyBackend
from demitasse.backends.cupy.library import detect
from demitasse.backends.cupy.library.detect import advice, look
from demitasse.core.device import Device, available_devices
from demitasse.errors import DeviceError, ErrorCode


class CUDARuntimeError(RuntimeError):
    pass


@pytest.fixture(autouse=True)
def forget():
    """Let no test believe what another has pretended."""
    available_devices.cache_clear()
    yield
    available_devices.cache_clear()


def machine(monkeypatch, *, driver: int, devices: int | Exception, built_for: int = 13020) -> None:
    """Pretend that cupy is installed on a machine with this driver and these GPUs."""

    def count() -> int:
        if isinstance(devices, Exception):
            raise devices
        return devices

    runtime = SimpleNamespace(
        runtimeGetVersion=lambda: built_for,
        driverGetVersion=lambda: driver,
        getDeviceCount=count,
    )
    cupy = SimpleNamespace(__version__="14.2.0", cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(detect, "import_module", lambda name: cupy)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def import_fails(monkeypatch, error: Exception) -> None:
    def fail(name: str) -> None:
        raise error

    monkeypatch.setattr(detect, "import_module", fail)


def test_gpus_are_listed(monkeypatch):
    machine(monkeypatch, driver=13020, devices=2)

    assert CupyBackend.devices() == ["cuda:0", "cuda:1"]


def test_without_cupy_both_packages_are_named(monkeypatch):
    import_fails(monkeypatch, ModuleNotFoundError("No module named 'cupy'", name="cupy"))

    assert CupyBackend.devices() == []
    assert CupyBackend.missing() == (
        'cupy is not installed; pip install "demitasse[cuda13]" (needs an NVIDIA driver of '
        'version 580 or newer) or pip install "demitasse[cuda12]" (525 or newer)'
    )


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libcuda.so.1: cannot open\nand much more"),
        ModuleNotFoundError("No module named 'cupy_backends'", name="cupy_backends"),
        RuntimeError("two cupys"),
    ],
)
def test_a_broken_cupy_is_said_to_be_broken(monkeypatch, error):
    import_fails(monkeypatch, error)

    assert CupyBackend.devices() == []
    assert "cannot be imported" in CupyBackend.missing()
    assert str(error).splitlines()[0] in CupyBackend.missing()
    assert "much more" not in CupyBackend.missing()


def test_without_a_driver(monkeypatch):
    error = CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")
    machine(monkeypatch, driver=0, devices=error)

    assert CupyBackend.devices() == []
    assert CupyBackend.missing().startswith(
        "cupy 14.2.0, built for CUDA 13.2, is installed, but no NVIDIA driver was found"
    )


def test_a_driver_that_is_too_old(monkeypatch):
    machine(monkeypatch, driver=12040, devices=CUDARuntimeError("cudaErrorInsufficientDriver"))

    assert "the NVIDIA driver runs CUDA 12.4 at most" in CupyBackend.missing()
    assert "demitasse[cuda12]" in CupyBackend.missing()


def test_an_older_driver_of_the_same_generation_is_no_fault(monkeypatch):
    machine(monkeypatch, driver=13000, devices=0)

    assert "the driver runs CUDA 13.0, but no GPU was found" in CupyBackend.missing()


def test_hidden_gpus(monkeypatch):
    machine(monkeypatch, driver=13020, devices=CUDARuntimeError("cudaErrorNoDevice"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    assert "CUDA_VISIBLE_DEVICES is '', which hides every GPU" in CupyBackend.missing()


def test_a_runtime_that_cannot_be_asked(monkeypatch):
    monkeypatch.setattr(detect, "import_module", lambda name: SimpleNamespace(__version__="14"))

    assert look().devices == 0
    assert "no NVIDIA driver was found (AttributeError" in advice(look())


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    machine(monkeypatch, driver=13020, devices=0)
    monkeypatch.setattr(Device, "_known", {})

    with expect_error(DeviceError, ErrorCode.UNAVAILABLE, device="cuda:0", mentions="GPU"):
        Device("gpu")


def test_a_gpu_with_too_high_a_number_is_refused(monkeypatch):
    machine(monkeypatch, driver=13020, devices=2)
    monkeypatch.setattr(Device, "_known", {})

    with expect_error(
        DeviceError, ErrorCode.UNAVAILABLE, device="cuda:2", mentions=["cuda:0", "cuda:1"]
    ):
        Device("cuda:2")


def test_importing_the_backend_loads_neither_cupy_nor_a_driver():
    code = """
import sys
import demitasse.backends.cupy
print([name for name in sys.modules if name.partition(".")[0] in ("cupy", "cupyx", "cuda")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"

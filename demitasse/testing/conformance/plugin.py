"""Pytest options and fixtures of the conformance tests."""

from __future__ import annotations

import pytest

from demitasse.core.device import Device
from demitasse.errors import DeviceError


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--device`` and ``--dtype``."""
    group = parser.getgroup("demitasse", "Demitasse's conformance tests")
    group.addoption("--device", metavar="NAME", default="cpu", help="device to test; default: cpu")
    group.addoption(
        "--dtype",
        metavar="NAME[,NAME]",
        default="float32,float64",
        help="element types of nets; default: float32,float64",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Stop if the device does not exist."""
    try:
        Device(config.getoption("--device"))
    except DeviceError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_header(config: pytest.Config) -> str:
    """Return the device and its backend class."""
    tested = Device(config.getoption("--device"))
    return f"device: {tested} ({type(tested.backend).__module__}.{type(tested.backend).__name__})"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses ``dtype`` once for each element type."""
    if "dtype" in metafunc.fixturenames:
        names = metafunc.config.getoption("--dtype").split(",")
        metafunc.parametrize("dtype", names, indirect=True)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Device:
    """Device under test."""
    return Device(request.config.getoption("--device"))


@pytest.fixture
def dtype(request: pytest.FixtureRequest, device: Device) -> str:
    """Element type of nets; skips types that the device does not support."""
    name: str = request.param
    try:
        device.backend.dtype(name)
    except DeviceError as error:
        pytest.skip(str(error))
    return name

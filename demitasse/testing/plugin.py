"""Pytest plugin: fixtures that run nets and layers on several devices.

Installing Demitasse registers the plugin::

    def test_my_net(assert_consistent):
        assert_consistent("net.prototxt")  # all devices of this machine, compared with numpy


    @pytest.mark.devices("cpu", "cuda:0")
    def test_on_each(device):  # once on each
        net = dm.Net("net.prototxt", device=device)

``pytest --demitasse-devices=cpu,cuda:0`` sets the devices of tests without the marker. Tests of a
device that is not available are skipped; with ``--demitasse-require`` they fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from demitasse.testing import Comparison

__all__ = ["assert_consistent", "device"]

OPTION, REQUIRE = "--demitasse-devices", "--demitasse-require"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options."""
    group = parser.getgroup("demitasse", "Demitasse: nets on several devices")
    group.addoption(
        OPTION,
        metavar="DEVICE[,DEVICE]",
        help="devices of the fixtures `device` and `assert_consistent`; default: numpy, cpu and "
        "every GPU",
    )
    group.addoption(
        REQUIRE, action="store_true", help="fail, not skip, tests of devices that do not exist"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", "devices(name, ...): devices of the fixtures `device` and `assert_consistent`"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses this plugin's ``device`` once on each device."""
    definitions = metafunc._arg2fixturedefs.get("device", ())
    if definitions and definitions[-1].func.__module__ == __name__:  # not a fixture of the user
        names = _names(metafunc.config, metafunc.definition.get_closest_marker("devices"))
        metafunc.parametrize("device", names, indirect=True)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    """Name of a device; the test runs once on each device."""
    return _available(request.config, request.param)


@pytest.fixture
def assert_consistent(request: pytest.FixtureRequest) -> Callable[..., Comparison]:
    """Function that fails if devices disagree: see :func:`consistent`."""

    def check(
        what: Any, devices: Sequence[str] | None = None, rtol: float | None = None, **options: Any
    ) -> Comparison:
        config = request.config
        names = devices or _names(config, request.node.get_closest_marker("devices"))
        return consistent(what, [_available(config, name) for name in names], rtol, **options)

    return check


def consistent(
    what: Any,
    devices: Sequence[str],
    rtol: float | None = None,
    *,
    inputs: dict[str, Any] | None = None,
    phase: str = "TRAIN",
    seed: int = 0,
) -> Comparison:
    """Run a net on several devices; fail if one disagrees with the first.

    Args:
        what: A net (``dm.Net``), a prototxt file, a message, or the prototxt of layers.
        devices: At least two; the first is the reference.
        rtol: Tolerance, relative to the largest value of each array; None for that of the net's
            dtype or storage. Layers that lose digits have a larger one: ``error_stats.TYPES``.
        inputs: An array for each net input; None for noise.
        phase: Phase of a net made from a file, message or prototxt.
        seed: Seed of parameters, inputs and dropout.

    Raises:
        AssertionError: A difference exceeds the tolerance; describes the first one.
    """
    from demitasse.net import Net
    from demitasse.testing.comparison import compare, precision, random_inputs

    made = what if isinstance(what, Net) else _net(what, phase, devices[0], seed)
    found = compare(made, devices, random_inputs(made, seed) if inputs is None else inputs)
    for one in found.all:
        if one.exceeds(precision(made), rtol):
            pytest.fail(f"devices disagree: {found.explain(one)}", pytrace=False)
    return found


def _net(what: Any, phase: str, device: str, seed: int) -> Any:
    from demitasse.io.proto import NetParameter, parse_text
    from demitasse.net import Net

    if isinstance(what, str) and "{" in what:
        what = parse_text(what, NetParameter)
    return Net(what, phase, device=device, seed=seed)


def _names(config: pytest.Config, marker: pytest.Mark | None) -> list[str]:
    """Return the devices of a test: of its marker, the option, or the default."""
    from demitasse.core.device import available_devices

    if marker is not None:
        return list(marker.args)
    given: str | None = config.getoption(OPTION)
    if given:
        return [name.strip() for name in given.split(",")]
    gpus = [name for name in available_devices() if name.startswith("cuda")]
    return ["numpy", "cpu", *gpus]


def _available(config: pytest.Config, name: str) -> str:
    """Return the name of a device; skip or fail the test if the device does not exist."""
    from demitasse.core.device import Device
    from demitasse.errors import DeviceError

    try:
        return Device(name).name
    except DeviceError as error:
        if config.getoption(REQUIRE):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))

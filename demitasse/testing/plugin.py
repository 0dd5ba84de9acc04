"""Pytest's plugin: nets and layers of your own on every device, in your own tests.

It is there when Demitasse is installed::

    def test_my_net(assert_consistent):
        assert_consistent("net.prototxt")  # the devices of this machine, against numpy


    @pytest.mark.devices("cpu", "cuda:0")
    def test_on_each(device):  # once on each
        net = dm.Net("net.prototxt", device=device)

``pytest --demitasse-devices=cpu,cuda:0`` chooses for all tests that do not; one that is not there
skips its tests, or fails them with ``--demitasse-require``.
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
    """Add the plugin's options."""
    group = parser.getgroup("demitasse", "Demitasse: nets on several devices")
    group.addoption(
        OPTION,
        metavar="DEVICE[,DEVICE]",
        help="devices for tests that ask for `device` or `assert_consistent`; default: numpy, cpu "
        "and every GPU that is there",
    )
    group.addoption(
        REQUIRE, action="store_true", help="fail, not skip, where such a device is not there"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers", "devices(name, ...): the devices that `device` and `assert_consistent` mean"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for our ``device`` once on each."""
    definitions = metafunc._arg2fixturedefs.get("device", ())
    if definitions and definitions[-1].func.__module__ == __name__:  # a user's own one wins
        names = _names(metafunc.config, metafunc.definition.get_closest_marker("devices"))
        metafunc.parametrize("device", names, indirect=True)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    """A device's name; the test runs once on each."""
    return _there(request.config, request.param)


@pytest.fixture
def assert_consistent(request: pytest.FixtureRequest) -> Callable[..., Comparison]:
    """A function that fails where devices part: see :func:`consistent`."""

    def check(
        what: Any,
        devices: Sequence[str] | None = None,
        rtol: float | None = None,
        **options: Any,
    ) -> Comparison:
        config = request.config
        names = devices or _names(config, request.node.get_closest_marker("devices"))
        return consistent(what, [_there(config, name) for name in names], rtol, **options)

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
    """Run a net on several devices; fail where one parts from the first.

    Args:
        what: A net (``dm.Net``), or what one is made from: a file, a message, or the text of
            layers.
        devices: At least two; the first is the reference.
        rtol: Largest difference, over the largest value of each array; by default that of what the
            net computes in. Layers that lose digits may be off by more: ``testing.tolerances``.
        inputs: An array for each net input; without, noise by ``seed``.
        phase: Of the net that is made.
        seed: Of parameters, inputs and dropout.

    Raises:
        AssertionError: Some array is off by more; says which is the first, and what is known of it.
    """
    from demitasse.net import Net
    from demitasse.testing.comparison import compare
    from demitasse.testing.inputs import random_inputs
    from demitasse.testing.tolerances import tolerance

    made = what if isinstance(what, Net) else _net(what, phase, devices[0], seed)
    found = compare(made, devices, random_inputs(made, seed) if inputs is None else inputs)
    for one in found.all:
        if not one.relative <= tolerance(made.dtype, one.type, rtol):
            pytest.fail(f"the devices part: {found.explain(one)}", pytrace=False)
    return found


def _net(what: Any, phase: str, device: str, seed: int) -> Any:
    from demitasse.io.proto import NetParameter, parse_text
    from demitasse.net import Net

    if isinstance(what, str) and "{" in what:
        what = parse_text(what, NetParameter)
    return Net(what, phase, device=device, seed=seed)


def _names(config: pytest.Config, marker: pytest.Mark | None) -> list[str]:
    """Return the devices that a test means."""
    from demitasse.core.device import available_devices

    if marker is not None:
        return list(marker.args)
    given: str | None = config.getoption(OPTION)
    if given:
        return [name.strip() for name in given.split(",")]
    gpus = [name for name in available_devices() if name.startswith("cuda")]
    return ["numpy", "cpu", *gpus]


def _there(config: pytest.Config, name: str) -> str:
    """Return a device's name; skip, or fail, where there is no such device."""
    from demitasse.core.device import Device
    from demitasse.errors import DeviceError

    try:
        return Device(name).name
    except DeviceError as error:
        if config.getoption(REQUIRE):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))

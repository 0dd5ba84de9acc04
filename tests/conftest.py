"""What every test can ask for: ``backend``, ``reference_data``; and the hypothesis profiles."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

BACKENDS = ("numpy", "readonly", "strict:device1", "cpu", "cuda:0")

# Every run of the suite tries the same examples, so a failure means that the code changed;
# `nox -s fuzz` looks for new ones.
settings.register_profile(
    "default", max_examples=25, deadline=None, derandomize=True, database=None
)
settings.register_profile("fuzz", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile("default")


os.umask(0o022)  # settings files that a group can write are ignored


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backends",
        metavar="DEVICE[,DEVICE]",
        default=os.environ.get("DEMITASSE_TEST_BACKENDS", ",".join(BACKENDS)),
        help="devices for tests that ask for `backend`; default: DEMITASSE_TEST_BACKENDS if set, "
        f"else {','.join(BACKENDS)}",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        devices = metafunc.config.getoption("--backends").split(",")
        cases = [pytest.param(device, marks=pytest.mark.backend) for device in devices]
        metafunc.parametrize("backend", cases, indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """A device, as a string; the test runs once on each.

    Without a GPU the ``cuda:0`` case skips, or fails under DEMITASSE_REQUIRE_GPU=1.
    """
    device: str = request.param
    if device.startswith(("cuda", "gpu")):
        _need_gpu(device)
    return device


def _need_gpu(device: str) -> None:
    from demitasse.device import Device
    from demitasse.errors import DeviceError

    try:
        Device(device).backend.synchronize()
    except DeviceError as error:
        if os.environ.get("DEMITASSE_REQUIRE_GPU") == "1":
            pytest.fail(f"DEMITASSE_REQUIRE_GPU=1, but: {error}")
        pytest.skip(f"no GPU: {error}")


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """The folder of models, data sets and outputs recorded from Caffe, not part of the project.

    Skips where DEMITASSE_REFERENCE_DATA is not set; fails where it names no folder.
    """
    value = os.environ.get("DEMITASSE_REFERENCE_DATA")
    if not value:
        pytest.skip("DEMITASSE_REFERENCE_DATA is not set, so there are no recorded models and data")
    folder = Path(value)
    if not folder.is_dir():
        pytest.fail(f"DEMITASSE_REFERENCE_DATA is set, but {folder} is not a folder")
    return folder

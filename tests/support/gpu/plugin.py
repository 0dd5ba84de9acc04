"""What pytest is told of the stand-in: ``--stand-in``, a fixture, and the header of a run.

It is imported when a test needs it: what it imports takes time, and some is compiled.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

import pytest

EVERY_RUN = (
    "core/test_blob.py",
    "core/test_deferred_contents.py",
    "core/test_memory.py",
    "core/test_memory_states.py",
    "layers/test_recorded_cases.py",
    "layers/test_empty_and_impossible_bottoms.py",
    "net/test_in_place.py",
    "net/test_keep.py",
    "net/test_net.py",
    "training/test_solver_goldens.py",
)
"""Files whose tests of every device run on the stand-in in every run of the suite."""


def add_options(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stand-in",
        action="store_true",
        default=os.environ.get("DEMITASSE_TEST_STAND_IN") == "1",
        help="put the stand-in for cupy and two GPUs in the place of the real ones",
    )


def configure(config: pytest.Config) -> None:
    """Put the stand-in in before any test is collected; have float32 exact on GPUs."""
    os.environ.setdefault("DEMITASSE_TF32", "off")
    if not config.getoption("--stand-in"):
        real_gpus()  # before another takes their place
        return
    if os.environ.get("DEMITASSE_REQUIRE_GPU") == "1":
        raise pytest.UsageError("DEMITASSE_REQUIRE_GPU=1 asks for a real GPU: not --stand-in")
    from gpu.package import put_in

    put_in()


def header(config: pytest.Config) -> str:
    if config.getoption("--stand-in"):
        return "GPU: NONE. cuda:0 and cuda:1 are the stand-in's (tests/support/gpu)"
    if not real_gpus() and not _required():
        return (
            "GPU: NONE. What runs on cuda:0 runs on a stand-in, which cannot show all a GPU would; "
            "tests of every device run there in a few files. All: nox -s stand_in"
        )
    return ""


def _required() -> bool:
    return os.environ.get("DEMITASSE_REQUIRE_GPU") == "1"


@cache
def real_gpus() -> int:
    """Return how many GPUs there are; asked before the stand-in is put in."""
    from demitasse.backends.cupy.library.detect import look

    return look().devices


def devices(metafunc: pytest.Metafunc, named: list[str]) -> list[str]:
    """Return the devices a test runs on, of those named.

    The GPUs of the stand-in are among them in the files of ``EVERY_RUN``, or where nothing else was
    asked for; real ones wherever there are some, or there must be.
    """
    given = metafunc.config
    if real_gpus() or _required() or given.getoption("--stand-in") or len(named) == 1:
        return named
    file = "/".join(Path(metafunc.module.__file__).parts[-2:])
    if file in EVERY_RUN and shutil.which("g++"):
        return named
    return [device for device in named if not is_gpu(device)]


def is_gpu(device: str) -> bool:
    return device.startswith(("cuda", "gpu"))


def need(device: str) -> None:
    """Have a GPU for this test: a real one, or the stand-in's where there is none."""
    from demitasse.core.device import Device
    from demitasse.errors import DeviceError

    if not real_gpus() and not _required():
        enter()
        return
    try:
        Device(device).backend.synchronize()
    except DeviceError as error:
        pytest.fail(f"DEMITASSE_REQUIRE_GPU=1, but: {error}" if _required() else str(error))


def enter() -> None:
    """Put the stand-in in until the test ends."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile the kernels for the host")
    from gpu.package import is_in, put_in

    if not is_in():
        put_in()
        _entered.append(True)


def leave() -> None:
    """Take the stand-in out again, where a test has put it in."""
    if not _entered:
        return
    from gpu.package import settle, take_out

    _entered.clear()
    try:
        settle()
    finally:
        take_out()


_entered: list[bool] = []


@pytest.fixture
def stand_in() -> None:
    """The stand-in in the place of cupy, for one test, on machines with a GPU too."""
    enter()

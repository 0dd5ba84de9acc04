"""What every test can ask for: ``backend``, ``reference_data``; hypothesis profiles; processes.

A run of all tests, or of whole folders, is shared out to one process for each core, by
pytest-xdist; ``-n`` says another number, ``-n 0`` none. What is picked by file or by ``-k`` runs
in this process, where it starts sooner and a debugger works.
"""

import gc
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import (
    runtestprotocol,
)  # no public name says it; plugins that repeat tests do so
from covering import PORTABLE
from covering import mark as mark_exhaustive
from gpu import plugin as gpu_plugin
from gpu.plugin import stand_in

__all__ = ["stand_in"]

BACKENDS = ("numpy", "readonly", "strict:device1", "cpu", "cuda:0")
MOST_PROCESSES = 8

LEFT_OUT = pytest.StashKey[int]()
"""How many tests ``-m`` has left out of a run that is shared out."""

if "PYTEST_XDIST_WORKER" in os.environ:
    # read when numpy and OpenMP are loaded, which is after this; the cores are taken by the
    # processes, and tests of teams say how many threads they need
    os.environ["OMP_NUM_THREADS"] = "1"

os.umask(0o022)  # settings files that a group can write are ignored


def _keep_bytecode() -> None:
    """Where Python was told to write no bytecode beside the sources, keep it in the user's cache.

    Otherwise each run compiles all tests again, and each process that a test starts the package.
    """
    if not sys.dont_write_bytecode:
        return
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = base / "demitasse" / "bytecode"
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


_keep_bytecode()  # before hypothesis is imported


def pytest_configure(config: pytest.Config) -> None:
    """Put the stand-in for cupy in place where it is asked for; choose what hypothesis tries."""
    gpu_plugin.configure(config)
    from hypothesis import HealthCheck, settings  # a hundred modules: compiled, and kept, now

    # Every run of the suite tries the same examples, so a failure means that the code changed;
    # `nox -s fuzz` looks for new ones. No test fails because the machine has other things to do.
    untimed = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile(
        "default", max_examples=25, derandomize=True, database=None, **untimed
    )
    settings.register_profile("fuzz", max_examples=2000, print_blob=True, **untimed)
    settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    gpu_plugin.add_options(parser)
    parser.addoption(
        "--guard",
        choices=("before", "behind"),
        help="run kernels in tests/backends/kernels on memory against inaccessible pages",
    )
    parser.addoption(
        "--targets",
        choices=("x86_64", "aarch64"),
        help="compile the kernels in tests/backends/kernels for all systems with this processor",
    )
    parser.addoption(
        "--backends",
        metavar="DEVICE[,DEVICE]",
        default=os.environ.get("DEMITASSE_TEST_BACKENDS", ",".join(BACKENDS)),
        help="devices for tests that ask for `backend`; default: DEMITASSE_TEST_BACKENDS if set, "
        f"else {','.join(BACKENDS)}",
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    return [line for line in (gpu_plugin.header(config), _left_out(config)) if line]


def _left_out(config: pytest.Config) -> str:
    """Say which tests the expression of ``-m`` leaves out, and where they run."""
    if "not pairs" not in config.option.markexpr:
        return ""
    return (
        "cases: a few in which all values of parameters meet in pairs, in tests/backends in which "
        "all values appear, and on readonly and strict one of each test. The others: nox -s pairs "
        "and nox -s exhaustive"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Share a whole run out, where nothing was said about that; before pytest-xdist reads it."""
    option = config.option
    if "PYTEST_XDIST_WORKER" in os.environ:  # a worker comes by here too, and needs none
        return
    if getattr(option, "numprocesses", 0) is not None:  # -n was given, or there is no xdist
        return
    if option.dist != "no" or option.tx or _is_picked(config) or option.usepdb:
        return
    if option.benchmark_enable:  # what is timed needs the machine to itself
        return
    from demitasse.core.host import cores

    option.numprocesses = min(cores(), MOST_PROCESSES)
    option.dist = "worksteal"


def _is_picked(config: pytest.Config) -> bool:
    """Whether only some tests are meant: by ``-k``, by file or by name."""
    return bool(config.option.keyword) or any(".py" in argument for argument in config.args)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while thousands of tests are collected, nor among them: they all stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_exhaustive(items)  # before `-m` chooses


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count what is left out, for the process that prints the summary."""
    if items and hasattr(items[0].config, "workeroutput"):
        output = items[0].config.workeroutput
        output["left_out"] = output.get("left_out", 0) + len(items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over the count of a process; all have collected the same tests."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests were left out, where other processes have collected them."""
    count = terminalreporter.config.stash.get(LEFT_OUT, 0)
    if count:
        terminalreporter.write_line(f"{count} tests were left out by -m")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    devices = gpu_plugin.devices(metafunc, metafunc.config.getoption("--backends").split(","))
    for name, out in (("backend", ()), ("backend_with_steps", PORTABLE)):
        if name in metafunc.fixturenames:
            cases = [pytest.param(d, marks=pytest.mark.backend) for d in devices if d not in out]
            metafunc.parametrize(name, cases, indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Take out the stand-in for cupy where the test has put it in."""
    gpu_plugin.leave()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Report of a test that passed its call alone, where another process has to be told.

    That process spends more time on reports than on anything else. Set-up and tear-down are still
    reported where they fail, and where somebody asked how long they take.
    """
    option = item.config.option
    if "PYTEST_XDIST_WORKER" not in os.environ or option.durations or option.xmlpath:
        return None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


_states: dict[str, Any] = {}
"""For each module with an ``RNG``, its state before the first test."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a test draw the same numbers from its module's ``RNG`` whichever tests ran before it."""
    rng = getattr(getattr(item, "module", None), "RNG", None)
    if rng is not None:
        state = _states.setdefault(item.module.__name__, rng.bit_generator.state)
        rng.bit_generator.state = state


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """A device, as a string; the test runs once on each.

    Without a GPU ``cuda:0`` is the stand-in's, in the files that ``gpu.plugin`` names; under
    DEMITASSE_REQUIRE_GPU=1 it fails.
    """
    device: str = request.param
    if device.startswith(("cuda", "gpu")):
        gpu_plugin.need(device)
    return device


@pytest.fixture
def backend_with_steps(request: pytest.FixtureRequest) -> str:
    """As ``backend``, without the devices that run every layer's portable code."""
    device: str = request.param
    if device.startswith(("cuda", "gpu")):
        gpu_plugin.need(device)
    return device


@pytest.fixture
def interrupts() -> Generator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where this process was started to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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

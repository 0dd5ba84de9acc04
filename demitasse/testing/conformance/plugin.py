"""Pytest options and fixtures of the conformance tests."""

import json
from collections.abc import Generator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from demitasse.core.atomic import write_bytes
from demitasse.core.device import Device
from demitasse.errors import DeviceError
from demitasse.testing.conformance.file_cases import FILES
from demitasse.testing.layer_cases import CASES, OTHER_CASES


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--device``, ``--dtype`` and ``--record``."""
    group = parser.getgroup("demitasse", "Demitasse's conformance tests")
    group.addoption("--device", metavar="NAME", default="cpu", help="device to test; default: cpu")
    types, about = "float32,float64", "element types of nets; default: float32,float64"
    group.addoption("--dtype", metavar="NAME[,NAME]", default=types, help=about)
    about = (
        "write the layer types that passed, by element type, as JSON; fail if the file has other "
        "results"
    )
    group.addoption("--record", metavar="FILE", type=Path, help=about)


def pytest_configure(config: pytest.Config) -> None:
    """Stop if the device does not exist; record the layer types that pass, if asked."""
    try:
        Device(config.getoption("--device"))
    except DeviceError as error:
        raise pytest.UsageError(str(error)) from error
    if (file := config.getoption("--record")) is not None:
        config.pluginmanager.register(LayerRecord(Device(config.getoption("--device")), file))


class LayerRecord:
    """Pytest plugin that writes the layer types that a device passes.

    A type has passed in an element type if all of its cases have. The file has the digest of the
    cases, so that a test detects a file that is out of date.
    """

    def __init__(self, device: Device, file: Path) -> None:
        self._device, self._file = device, file
        self._results: dict[str, dict[str, str]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep the worst result of each layer type and element type."""
        report = yield
        if (layer := _layer_of(item)) is not None and (report.when == "call" or not report.passed):
            dtype, name = layer
            results = self._results.setdefault(dtype, {})
            if report.passed:
                results.setdefault(name, "passed")
            elif report.skipped and isinstance(report.longrepr, tuple):
                results[name] = report.longrepr[2].removeprefix("Skipped: ")
            else:
                results[name] = "failed"
        return report

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file, unless it has the same results; fail if it had others."""
        record: dict[str, Any] = {
            "device": str(self._device),
            "environment": self._device.backend.environment(),
            "cases": digest_of_cases(),
        }
        for dtype, results in self._results.items():
            passed = sorted(name for name, result in results.items() if result == "passed")
            refused = {name: results[name] for name in sorted({*results} - {*passed})}
            record[dtype] = {"passed": " ".join(passed), "refused": refused}
        if self._file.exists():
            before = json.loads(self._file.read_text(encoding="utf-8"))
            if before | {"environment": record["environment"]} == record:
                return
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        write_bytes(self._file, (json.dumps(record, indent=1) + "\n").encode())


def digest_of_cases() -> str:
    """Return a digest of the cases of all layer types."""
    tables = (*CASES.values(), *OTHER_CASES.values())
    cases = [f"{case} {' '.join(case.text.split())} {case.phase}" for t in tables for case in t]
    files = [f"{name} {case.net} {case.phase}" for name, case in FILES.items()]
    return sha256("\n".join(sorted(cases + files)).encode()).hexdigest()[:16]


def _layer_of(item: pytest.Item) -> tuple[str, str] | None:
    """Return element type and layer type of a case of a layer; None for other tests."""
    params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    case = params.get("case")
    name = params.get("name") if case is None else case.type
    return (params["dtype"], name) if name is not None and "dtype" in params else None


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

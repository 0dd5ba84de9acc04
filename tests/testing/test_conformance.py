"""Backends of other packages: found by their entry points, and judged by the conformance tests.

The package is the one that docs/development/backend.md leads to, as it stands there.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from expect_error import expect_error

from demitasse import backends
from demitasse.backends import backend_class, backend_names
from demitasse.core.device import Device, available_devices
from demitasse.errors import DeviceError

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/development/backend.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The only block of the page in a language."""
    [text] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return text


MODULE = block("python")
ENTRY_POINT = block("toml").replace("project.entry-points.", "").replace('"', "")


def install(folder: Path, entry_points: str = ENTRY_POINT, name: str = "demitasse-mine") -> None:
    """Make a folder what pip would make of a package."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def entry(line: str) -> str:
    return f"[demitasse.backends]\n{line}\n"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages that this process sees, and forgets afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(Device, "_known", dict(Device._known))
    backend_class.cache_clear()
    available_devices.cache_clear()
    backends.warn_once.cache_clear()
    yield tmp_path
    sys.modules.pop("demitasse_mine", None)
    backend_class.cache_clear()
    available_devices.cache_clear()


def run(*arguments: object, site: Path) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own that sees the packages in ``site``."""
    paths = os.pathsep.join([str(site), str(ROOT)])
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )


def conformance(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(
        "-m", "demitasse.testing.conformance", "--device=mine:0", "-q", "--tb=short",
        "-p", "no:hypothesispytest",  # it imports a hundred modules
        *arguments, site=site,
    )  # fmt: skip


def test_the_cpu_passes_the_tests_of_nets_and_memories(tmp_path):
    done = run(
        "-m", "demitasse.testing.conformance", "--device=cpu", "-q", "--tb=short",
        "-k", "nets or memory or arrays", site=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout


# -- the package of the documentation ------------------------------------------------------------


@pytest.fixture
def mine(tmp_path) -> Path:
    (tmp_path / "demitasse_mine.py").write_text(MODULE)
    install(tmp_path)
    return tmp_path


def test_a_backend_of_another_package_passes(mine):
    done = conformance(mine, "--dtype=float32", "-k", "arrays or memory or nets or convolution")

    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout


def test_doctor_lists_it(mine):
    done = run("-m", "demitasse", "doctor", "--json", site=mine)

    assert json.loads(done.stdout)["devices"]["mine"] == ["mine:0"]


def test_it_is_a_device_like_ours(site, mine):
    assert Device("mine") is Device("mine:0")
    assert "mine:0" in available_devices()
    assert "mine" in backend_names()
    with expect_error(DeviceError, mentions=["'mine:7'", "mine:0"]):
        Device("mine:7")


FAULTS = {
    "views that copy": (
        "def view(self, flat, shape, count):\n        return flat[:count].reshape(shape).copy()",
        "test_views_write_through",
    ),
    "arrays that are the host's": (
        "def asarray(self, host):\n        return mine.asarray(host)",
        "test_arrays_of_host_and_device_are_copies",
    ),
    "random words of its own": (
        "def random_bits(self, seed, stream, passes, count, first=0):\n"
        "        return super().random_bits(seed, stream, passes, count, 0)",
        "test_random_words_are_the_same_everywhere",
    ),
}


ONE, *OTHERS = FAULTS


@pytest.mark.parametrize(
    "fault", [ONE, *(pytest.param(fault, marks=pytest.mark.exhaustive) for fault in OTHERS)]
)
def test_a_broken_contract_is_found(mine, fault):
    method, test = FAULTS[fault]
    with (mine / "demitasse_mine.py").open("a") as file:
        file.write(f"\n    {method}\n")

    done = conformance(mine, "-k", "test_arrays")

    assert done.returncode == 1
    assert f"::{test}" in done.stdout


def test_a_wrong_result_names_layer_blob_and_difference(mine):
    with (mine / "demitasse_mine.py").open("a") as file:
        file.write(
            "\n\nclass Namespace:\n"
            "    tanh = staticmethod(lambda x: mine.tanh(x) * 1.01)\n"
            "    def __getattr__(self, name):\n        return getattr(mine, name)\n"
            "MineBackend.xp = Namespace()\n"
        )

    done = conformance(mine, "--dtype=float32", "-k", "computes and TanH-0")

    assert done.returncode == 1
    assert all(name in done.stdout for name in ("mine:0", "numpy", "float32", "1e-04"))
    assert re.search(r"layer 'layer' \(TanH\), top 'top0'.* 1\.00e-02 ", done.stdout)
    assert "layer 'layer' (TanH), gradient of bottom 'bottom0'" in done.stdout


def test_a_device_that_is_not_there_ends_the_conformance_tests(tmp_path):
    done = conformance(tmp_path)

    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "'mine'" in done.stderr


# -- what may be wrong with a package ------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "target", "said"),
    [
        (None, "demitasse_mine:MineBackend", "ModuleNotFoundError: No module named"),
        ("import no_such_library", "demitasse_mine:MineBackend", "No module named 'no_such_li"),
        ("", "demitasse_mine:MineBackend", "AttributeError: "),
        ("class Mine: pass", "demitasse_mine:Mine", "a subclass of demitasse.backends.base.Backe"),
        ("def mine(): return 3", "demitasse_mine:mine", "not 3"),
    ],
    ids=["no module", "no library", "no class", "another class", "no backend returned"],
)
def test_a_broken_package_is_named(site, module, target, said):
    if module is not None:
        (site / "demitasse_mine.py").write_text(module)
    install(site, entry(f"mine = {target}"))

    with expect_error(DeviceError, mentions=["demitasse-mine 1.0", f"'mine = {target}'", said]):
        Device("mine:0")

    assert "mine:0" not in available_devices()


def test_doctor_says_what_is_broken(mine):
    (mine / "demitasse_mine.py").write_text("import no_such_library")

    done = run("-m", "demitasse", "doctor", "--json", site=mine)

    broken = json.loads(done.stdout)["devices"]["mine"]
    assert "demitasse-mine 1.0" in broken
    assert "no_such_library" in broken


def test_a_function_may_choose_the_class(site):
    (site / "demitasse_mine.py").write_text(f"{MODULE}\ndef choose():\n    return MineBackend\n")
    install(site, entry("mine = demitasse_mine:choose"))

    assert str(Device("mine")) == "mine:0"


@pytest.mark.parametrize("name", ["numpy", "gpu"])
def test_our_own_names_win_and_the_clash_is_said(site, caplog, name):
    (site / "demitasse_mine.py").write_text(MODULE)
    install(site, entry(f"{name} = demitasse_mine:MineBackend"))

    found = Device("numpy")
    for _ in range(2):  # packages are searched for names that are not ours
        with expect_error(DeviceError, mentions="tpu"):
            Device("tpu")

    assert type(found.backend).__name__ == "NumpyBackend"
    [clash] = caplog.messages  # once
    assert f"'{name}'" in clash
    assert "demitasse-mine 1.0" in clash
    done = run("-m", "demitasse", "doctor", "--json", site=site)
    assert clash in json.loads(done.stdout)["problems"][0]


def test_a_name_of_two_packages_is_refused(site):
    install(site, entry("mine = demitasse_mine:MineBackend"))
    install(site, entry("mine = other:Backend"), name="other")

    with expect_error(DeviceError, mentions=["'mine'", "demitasse-mine", "other"]):
        Device("mine")


def test_an_unknown_name_is_refused_with_the_nearest(site, mine):
    with expect_error(DeviceError, mentions=["'mien'", "'mine'", "cpu"]):
        Device("mien:0")


def test_packages_are_not_searched_for_names_of_ours(site, monkeypatch):
    def searched():
        raise AssertionError

    monkeypatch.setattr(backends, "entry_points_by_name", searched)

    assert str(Device("readonly")) == "readonly"
    assert str(Device("strict")) == "strict:device1"


def test_our_torch_backend_is_registered_as_others_are():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    for name, value in project["entry-points"][backends.GROUP].items():
        kind = backends.class_of(EntryPoint(name, value, backends.GROUP).load())
        assert kind.name == name
        assert all(device.startswith(f"{name}:") for device in kind.devices())

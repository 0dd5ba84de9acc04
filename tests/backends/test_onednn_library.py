"""Where oneDNN's library is looked for, and what is said where there is none."""

import ctypes
import logging
import subprocess
import sys
import sysconfig
from dataclasses import replace
from types import SimpleNamespace

import pytest

from demitasse.backends import onednn
from demitasse.backends.onednn.library import library
from demitasse.core.config import settings
from demitasse.core.device import Device


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """An environment of Python without any library, where all else is as it is."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setattr(library.site, "ENABLE_USER_SITE", False)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    return tmp_path


PLACES = [
    pytest.param("linux", "lib/libdnnl.so.3", id="pip or conda on Linux"),
    pytest.param("darwin", "lib/libdnnl.3.dylib", id="pip or conda on macOS"),
    pytest.param("win32", "Library/bin/dnnl.dll", id="pip or conda on Windows"),
    pytest.param("win32", "bin/dnnl.dll", id="a folder of Windows"),
]


@pytest.mark.parametrize(("system", "place"), PLACES)
def test_it_is_found_where_installers_put_it(environment, monkeypatch, system, place):
    monkeypatch.setattr(sys, "platform", system)
    file = environment / place
    file.parent.mkdir(parents=True)
    file.touch()

    with settings.override(onednn_library=""):
        assert next(library._candidate_files()) == str(file)


def test_a_user_s_own_folder_is_looked_at(environment, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(library.site, "ENABLE_USER_SITE", True)
    monkeypatch.setattr(library.site, "getuserbase", lambda: str(tmp_path / "local"))
    file = tmp_path / "local" / "lib" / "libdnnl.so.3"
    file.parent.mkdir(parents=True)
    file.touch()

    with settings.override(onednn_library=""):
        assert str(file) in library._candidate_files()


def test_a_folder_that_pip_alone_installs_to_is_looked_at(environment, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sysconfig, "get_path", {"data": str(tmp_path / "local")}.get)
    file = tmp_path / "local" / "lib" / "libdnnl.so.3"
    file.parent.mkdir(parents=True)
    file.touch()

    with settings.override(onednn_library=""):
        assert next(library._candidate_files()) == str(file)


def test_a_setting_is_the_only_place(environment):
    with settings.override(onednn_library="/opt/own/libdnnl.so.3"):
        assert list(library._candidate_files()) == ["/opt/own/libdnnl.so.3"]


@pytest.fixture
def nowhere(monkeypatch):
    """No library can be loaded by any name."""

    def missing(place, *args, **options):
        message = f"{place}: cannot open shared object file"
        raise OSError(message)

    monkeypatch.setattr(library.ctypes, "CDLL", missing)


@pytest.mark.parametrize(
    ("system", "machine", "command"),
    [
        ("Linux", "x86_64", "python -m pip install onednn-cpu-gomp"),
        ("Darwin", "arm64", "conda install -c conda-forge onednn-cpu-omp"),
        ("Darwin", "x86_64", "python -m pip install onednn-cpu-iomp"),
        ("Windows", "AMD64", "python -m pip install onednn-cpu-vcomp"),
        ("Linux", "riscv64", ""),
    ],
)
def test_what_to_install_is_said(environment, nowhere, monkeypatch, system, machine, command):
    monkeypatch.setattr(library.platform, "system", lambda: system)
    monkeypatch.setattr(library.platform, "machine", lambda: machine)

    with settings.override(onednn_library=""):
        _, status = library._load_first.__wrapped__()

    assert not status.loaded
    assert "cannot open shared object file" in status.reason
    assert status.advice == command
    assert status.slow.startswith("slow path: ")
    assert status.slow.endswith(command)


def test_on_aarch64_linux_a_library_is_looked_for_where_a_setting_says(environment, monkeypatch):
    monkeypatch.setattr(library, "architecture", lambda: library.AARCH64)

    with settings.override(onednn_library=""):
        found, status = library._load_first.__wrapped__()
    with settings.override(onednn_library="/opt/own/libdnnl.so.3"):
        named = list(library._candidate_files())

    assert found is None
    assert status.reason == library.REFERENCE_CODE
    assert not status.advice
    assert named == ["/opt/own/libdnnl.so.3"]


@pytest.mark.parametrize("alone", [True, False], ids=["kernels and numpy", "numpy"])
def test_the_slow_path_is_reported_once_there_is_something_to_install(monkeypatch, alone):
    monkeypatch.setattr(library, "kernels_alone", lambda: alone)

    missing = onednn.Status(False, reason="it is nowhere")

    assert bool(missing.slow) is not alone
    assert ("kernels of its own" in replace(missing, advice="pip").slow) is alone


def test_a_library_without_openmp_is_not_installed_once_more(environment, monkeypatch):
    def lacking(place, *args, **options):
        message = "libgomp.so.1: cannot open shared object file: No such file or directory"
        raise OSError(message)

    monkeypatch.setattr(library.ctypes, "CDLL", lacking)

    with settings.override(onednn_library=""):
        _, status = library._load_first.__wrapped__()

    assert "apt-get install libgomp1" in status.advice
    assert "onednn-cpu-gomp" not in status.slow


def test_a_library_that_was_switched_off_is_not_missed(environment):
    with settings.override(onednn_library="none"):
        _, status = library._load_first.__wrapped__()

    assert not status.loaded
    assert not status.slow


@pytest.mark.parametrize("runtime", [0, 256, 512])  # none, OpenCL, SYCL
def test_a_library_of_another_runtime_is_not_used(runtime, environment, monkeypatch):
    class Sycl:
        class Function:
            restype = argtypes = None

            def __call__(self):
                return ctypes.pointer(library.Version(3, 13, 0, b"", runtime, 512))

        dnnl_version = Function()

    monkeypatch.setattr(library.ctypes, "CDLL", lambda place: Sycl)

    with settings.override(onednn_library="/opt/libdnnl.so.3"):
        found, status = library._load_first.__wrapped__()

    assert found is None
    assert f"runtime {runtime}" in status.reason


@pytest.mark.parametrize(("machine", "code"), [("x86_64", 0x27), ("AMD64", 0x27), ("aarch64", 0)])
def test_codes_of_instruction_sets_are_those_of_x86(machine, code, monkeypatch):
    monkeypatch.setattr(library.platform, "machine", lambda: machine)
    loaded = SimpleNamespace(dnnl_get_effective_cpu_isa=lambda: 0x27)

    assert library.instruction_set(loaded) == code


@pytest.mark.parametrize("alone", [True, False], ids=["kernels and numpy", "numpy"])
def test_without_it_the_device_is_another_and_says_so_once(monkeypatch, caplog, alone):
    status = onednn.Status(False, reason="not there", advice="install it")
    monkeypatch.setattr(onednn, "load", lambda: None)
    monkeypatch.setattr(onednn, "kernels_alone", lambda: alone)
    monkeypatch.setattr(onednn, "status", lambda: status)
    onednn._tell_slow.cache_clear()

    with caplog.at_level(logging.WARNING):
        kinds = [onednn.cpu_backend() for _ in range(2)]

    assert {kind.name for kind in kinds} == {"kernels" if alone else Device("numpy").backend.name}
    [line] = caplog.messages
    assert line.startswith("slow path: ")
    assert "install it" in line


FIRST_USE = """
import threading, time
from demitasse.backends.onednn.library import library

calls, install = [], library.install

def slow(found):
    calls.append(found)
    time.sleep(0.2)
    return install(found)

library.install = slow
threads = [threading.Thread(target=library.load) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(calls), library.status().loaded)
"""


@pytest.mark.skipif(not onednn.status().loaded, reason=str(onednn.status()))
def test_threads_that_use_it_first_at_the_same_time_load_it_once():
    done = subprocess.run(
        [sys.executable, "-c", FIRST_USE], check=False, capture_output=True, text=True
    )

    assert (done.returncode, done.stdout.split()) == (0, ["1", "True"]), done.stderr

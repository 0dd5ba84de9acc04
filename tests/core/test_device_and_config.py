"""Settings and devices: which value wins, and what is said when it cannot be had."""

import pickle
import threading

import pytest

from demitasse import errors
from demitasse.config import Settings, settings
from demitasse.device import Device, choose_device, current_device, set_device, use_device
from demitasse.errors import ConfigError, DataError, DeviceError, PrototxtError


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """No setting but what a test makes."""
    for name in settings.names():
        monkeypatch.delenv(f"DEMITASSE_{name.upper()}", raising=False)
    monkeypatch.chdir(tmp_path)
    yield
    set_device(None)


def test_the_strongest_source_of_a_device_wins(tmp_path, monkeypatch):
    order = []

    order.append(choose_device())
    (tmp_path / "demitasse.toml").write_text('device = "readonly"')
    order.append(choose_device())
    order.append(choose_device(solver_file="numpy"))
    monkeypatch.setenv("DEMITASSE_DEVICE", "strict:device1")
    order.append(choose_device(solver_file="numpy"))
    set_device("cpu")
    order.append(choose_device(solver_file="numpy"))
    with use_device("numpy"):
        order.append(choose_device(solver_file="readonly"))
        order.append(choose_device("readonly"))

    assert [(str(device), where.split("/")[-1]) for device, where in order] == [
        ("cpu", "default"),
        ("readonly", "demitasse.toml"),
        ("numpy", "solver file"),
        ("strict:device1", "DEMITASSE_DEVICE"),
        ("cpu", "set_device"),
        ("numpy", "use_device"),
        ("readonly", "argument"),
    ]


def test_use_device_is_for_its_own_thread():
    seen = []

    with use_device("numpy"):
        thread = threading.Thread(target=lambda: seen.append(current_device()))
        thread.start()
        thread.join()
        seen.append(current_device())

    assert [str(d) for d in seen] == ["cpu", "numpy"]


def test_one_name_is_one_device():
    assert Device("numpy") is Device(Device("numpy"))
    assert pickle.loads(pickle.dumps(Device("strict:device1"))) is Device("strict:device1")
    assert Device("numpy") != Device("cpu")


@pytest.mark.parametrize("name", ["tpu", "strict:device9", "", "cuda:x"])
def test_a_device_that_is_not_there_is_never_replaced(name):
    with pytest.raises(DeviceError):
        Device(name)


def test_pyproject_is_read_from_a_folder_above(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text("[tool.demitasse]\nplan = false\n[tool.other]\nx = 1")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "er")

    assert settings.get("plan") is False
    assert settings.where("plan").endswith("pyproject.toml")


def test_a_foreign_pyproject_is_none_of_our_business(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nx = 1")

    assert settings.where("plan") == "default"


def test_values_that_cannot_be_read_name_their_source(tmp_path, monkeypatch):
    monkeypatch.setenv("DEMITASSE_PLAN", "perhaps")
    with pytest.raises(ConfigError, match="DEMITASSE_PLAN sets plan to 'perhaps'"):
        settings.get("plan")
    monkeypatch.delenv("DEMITASSE_PLAN")
    (tmp_path / "demitasse.toml").write_text("plan = = 1")
    with pytest.raises(ConfigError, match=r"demitasse\.toml cannot be read"):
        settings.get("plan")


def test_an_unknown_setting_names_the_known_ones():
    with pytest.raises(ConfigError, match="known are device"):
        settings.get("devise")


def test_an_override_ends_with_its_block():
    mine = Settings()

    with mine.override(seed=5):
        inside = mine.get("seed")

    assert (inside, mine.get("seed")) == (5, -1)


def test_errors_say_where():
    error = errors.ShapeError("it is 3, it should be 4").at("layer 'ip1'").from_line("a.prototxt:6")

    assert str(error.at("net 'n'")) == (
        "net 'n': layer 'ip1': it is 3, it should be 4  [a.prototxt:6]"
    )
    assert str(PrototxtError("no", "a", 1, 2)) == "a:1:2: no"
    assert str(DataError("no", "db", "007")) == "db, record '007': no"


def test_every_error_is_in_the_tree():
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.DemitasseError)
        assert name in (errors.__doc__ or "")

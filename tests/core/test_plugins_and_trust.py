"""Names that are none of ours, files that the user trusts, modules that add layers and devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from expect_error import expect_error
from needs import needs

from demitasse.core import plugins
from demitasse.core.config import files as trust
from demitasse.core.config import settings
from demitasse.core.config.files import settings_file
from demitasse.core.device import choose_device
from demitasse.errors import ConfigError, DeviceError, ErrorCode

posix = needs("modes")

LAYER = '''
import demitasse as dm

@dm.register_layer("Twice{name}")
class Twice(dm.Layer):
    """Double a blob."""

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].write(bottom[0].read() * 2)
'''

BACKEND = """
import demitasse as dm
from demitasse.backends.numpy.backend import NumpyBackend

@dm.register_backend("{name}")
class Mine(NumpyBackend):
    name = "{name}"

    @classmethod
    def devices(cls):
        return ["{name}"]
"""

NET = (
    'name: "n" layer { name: "in" type: "Input" top: "a" input_param { shape { dim: 1 dim: 2 } } }'
)
TWICE = ' layer { name: "t" type: "Twice%s" bottom: "a" top: "b" }'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working directory, and a user who trusts no file yet."""
    for name in settings.names():
        monkeypatch.delenv(f"DEMITASSE_{name.upper()}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(plugins, "_imported", set())
    return work


def demitasse(*args, **variables):
    return subprocess.run(
        [sys.executable, "-m", "demitasse", *args],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )


@pytest.mark.parametrize(
    ("text", "key", "near"),
    [('devise = "cpu"', "devise", "'device'"), ("[solver]\nx = 1", "solver", "device")],
)
def test_a_key_that_is_no_setting_is_an_error_that_names_the_nearest_and_the_file(
    folder, text, key, near
):
    (folder / "demitasse.toml").write_text(text)

    file = str(folder / "demitasse.toml")
    with expect_error(
        ConfigError, ErrorCode.UNKNOWN, file=file, setting=key, mentions=[file, near]
    ):
        settings.get("seed")


def test_a_variable_that_is_none_of_ours_is_an_error_that_names_the_nearest(monkeypatch):
    monkeypatch.setenv("DEMITASSE_DEVISE", "cpu")

    with expect_error(
        ConfigError, ErrorCode.UNKNOWN, variable="DEMITASSE_DEVISE", mentions="'DEMITASSE_DEVICE'"
    ):
        settings.get("seed")

    done = demitasse("version")

    assert done.returncode == 2
    assert "'DEMITASSE_DEVICE'" in done.stderr


def test_an_unknown_device_names_the_nearest_and_who_asked_for_it(folder, monkeypatch):
    (folder / "demitasse.toml").write_text('device = "cudda:0"')

    with expect_error(DeviceError, place=str(folder / "demitasse.toml"), mentions="'cuda'"):
        choose_device()

    monkeypatch.setenv("DEMITASSE_DEVICE", "nunpy")
    with expect_error(DeviceError, place="DEMITASSE_DEVICE", mentions=["'nunpy'", "'numpy'"]):
        choose_device()


def test_a_trusted_file_may_say_which_code_runs_until_it_changes(folder, caplog):
    file = folder / "demitasse.toml"
    file.write_text('plugins = ["mine"]')
    seen = [settings.get("plugins")]

    trust.trust(file)
    seen.append(settings.get("plugins"))
    file.write_text('plugins = ["other"]')
    os.utime(file, ns=(0, 1))
    seen.append(settings.get("plugins"))

    assert seen == [(), ("mine",), ()]
    assert f"`demitasse trust {file}`" in caplog.text

    trust.trust(file)
    assert settings.get("plugins") == ("other",)
    assert trust.distrust(file)
    assert settings.get("plugins") == ()
    assert not trust.distrust(file)


@posix
def test_a_file_that_others_can_write_cannot_be_trusted(folder):
    file = folder / "demitasse.toml"
    file.write_text("jit = true")
    file.chmod(0o666)

    with expect_error(ConfigError, ErrorCode.UNTRUSTED, mentions="chmod go-w"):
        trust.trust(file)

    file.chmod(0o644)
    folder.chmod(0o777)
    with expect_error(ConfigError, ErrorCode.UNTRUSTED, mentions="chmod go-w"):
        trust.trust(file)


@posix
@pytest.mark.parametrize("spoil", ["mode", "text"])
def test_a_list_that_others_can_write_or_that_is_broken_counts_for_nothing(folder, caplog, spoil):
    file = folder / "demitasse.toml"
    file.write_text('plugins = ["mine"]')
    trust.trust(file)

    if spoil == "mode":
        trust.trust_list().chmod(0o666)
    else:
        trust.trust_list().write_text("[" * 100_000)

    assert settings.get("plugins") == ()
    assert str(trust.trust_list()) in caplog.text


def test_the_list_names_each_file_and_its_digest(folder):
    file = folder / "demitasse.toml"
    file.write_text("seed = 1")

    trust.trust(file)

    assert json.loads(trust.trust_list().read_text()) == {
        str(file.resolve()): settings_file(str(file)).digest
    }


@posix
def test_the_list_is_in_a_folder_of_its_users_own(folder):
    file = folder / "demitasse.toml"
    file.write_text("seed = 1")

    trust.trust(file)

    assert trust.trust_list().parent.stat().st_mode & 0o777 == 0o700


def test_a_layer_of_the_users_own_is_found_by_every_way_of_naming_its_module(folder):
    """In the environment, by the flag, in a file that is trusted; a module or a file."""
    for number in range(3):
        (folder / f"own{number}.py").write_text(LAYER.format(name=number))
        (folder / f"net{number}.prototxt").write_text(NET + TWICE % number)
    (folder / "deep").mkdir()
    (folder / "deep" / "demitasse.toml").write_text('plugins = ["../own2.py"]')

    unknown = demitasse("summary", "net0.prototxt")
    by_variable = demitasse("summary", "net0.prototxt", DEMITASSE_PLUGINS="own0")
    by_flag = demitasse("summary", "net1.prototxt", "--plugins", "own1.py")
    absent = demitasse("summary", "net1.prototxt", "--plugins", "my.layers")
    trusted = demitasse("trust", "deep/demitasse.toml")
    os.chdir("deep")
    by_file = demitasse("summary", "../net2.prototxt")

    assert "'Twice0'" in unknown.stderr
    assert "name its file by --plugins" in unknown.stderr
    assert unknown.returncode == 3
    assert "plugin 'my.layers'" in absent.stderr
    assert (by_variable.returncode, by_flag.returncode) == (0, 0), by_flag.stderr
    assert "Twice1" in by_flag.stdout
    assert (trusted.returncode, by_file.returncode) == (0, 0), by_file.stderr
    assert "Twice2" in by_file.stdout


def test_trust_does_not_advise_itself(folder):
    Path("own.py").write_text("")
    Path("demitasse.toml").write_text('plugins = ["own.py"]')

    listed = demitasse("trust")
    trusted = demitasse("trust", "demitasse.toml")

    assert "demitasse trust" in listed.stderr
    assert (trusted.returncode, trusted.stderr) == (0, "")


def test_a_file_without_settings_is_not_trusted(folder):
    Path("own.toml").write_text("seed = 1")

    refused = demitasse("trust", "own.toml")

    assert refused.returncode == 2
    assert "demitasse.toml or pyproject.toml" in refused.stderr
    assert not trust.trusted_files()


def test_a_module_is_imported_when_a_layer_of_it_is_asked_for(folder, monkeypatch):
    from demitasse import Net

    Path("own_of_test.py").write_text(LAYER.format(name="Asked"))
    monkeypatch.setenv("DEMITASSE_PLUGINS", "own_of_test")

    Path("net.prototxt").write_text(NET + TWICE % "Asked")

    net = Net("net.prototxt", "TEST", device="numpy")
    net.blobs["a"].data[...] = 3
    net.forward()

    assert net.blobs["b"].data.tolist() == [[6, 6]]


def test_a_backend_of_the_users_own_runs_nets(folder, monkeypatch):
    Path("own_backend.py").write_text(BACKEND.format(name="mine"))
    Path("net.prototxt").write_text(NET)
    monkeypatch.setenv("DEMITASSE_PLUGINS", "own_backend")

    done = demitasse("time", "--model", "net.prototxt", "--iterations", "1", "--device", "mine")
    doctor = demitasse("doctor")

    assert done.returncode == 0, done.stderr
    assert "mine" in doctor.stdout


@pytest.mark.parametrize(
    ("text", "raised"), [(None, "ModuleNotFoundError"), ("1 / 0", "ZeroDivisionError")]
)
def test_a_module_that_cannot_be_imported_is_an_error_that_says_who_named_it(
    folder, monkeypatch, text, raised
):
    if text:
        Path("broken.py").write_text(text)
    monkeypatch.setenv("DEMITASSE_PLUGINS", "broken")

    for _ in range(2):  # again when it is asked for again
        with expect_error(
            ConfigError,
            ErrorCode.FAILED,
            plugin="broken",
            raised=raised,
            mentions=["DEMITASSE_PLUGINS", raised],
        ):
            plugins.import_plugins()


def test_a_name_that_is_taken_is_refused():
    from demitasse import register_backend
    from demitasse.backends.numpy.backend import NumpyBackend

    with expect_error(DeviceError, mentions="'cpu'"):
        register_backend("cpu")(NumpyBackend)
    with expect_error(DeviceError, ErrorCode.INVALID):  # without parentheses
        register_backend(NumpyBackend)


def test_a_plugin_in_a_folder_of_pythons_path_leaves_the_path_as_it_was(folder, monkeypatch):
    (folder / "first_on_the_path.py").write_text(LAYER.format(name="First"))
    monkeypatch.syspath_prepend(str(folder))
    before = list(sys.path)

    with settings.override(plugins=["first_on_the_path.py"]):
        plugins.import_plugins()

    assert sys.path == before

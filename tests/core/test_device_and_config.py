"""Settings and devices: which value wins, and what is said when it cannot be had."""

import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from expect_error import expect_error, expect_warning
from needs import needs

from demitasse import errors
from demitasse.core import deprecated
from demitasse.core.config import Settings, files, settings
from demitasse.core.config.table import OTHER_VARIABLES, TABLE
from demitasse.core.device import Device, choose_device, current_device, set_device, use_device
from demitasse.core.plugins import import_plugins
from demitasse.errors import ConfigError, DataError, DeviceError, ErrorCode, PrototxtError

posix = needs("modes")


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

    assert [(str(device), Path(where).name) for device, where in order] == [
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


def test_a_gpu_is_replaced_where_there_is_none_and_a_setting_says_so(monkeypatch):
    from demitasse.core import device

    monkeypatch.setattr(device, "devices_of", lambda kind: () if kind == "cuda" else ("cpu",))
    monkeypatch.setattr(Device, "_known", {})
    device._warn_of_fallback.cache_clear()

    with settings.override(gpu_fallback="cpu"):
        with expect_warning(RuntimeWarning, mentions=["GPU", "cpu"]) as caught:
            chosen = Device("cuda:0")
        again = Device("gpu")

    assert (chosen.name, again.name) == ("cpu", "cpu")
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.raises(DeviceError):
        Device("cuda:0")


def test_pyproject_is_read_from_a_folder_above(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text(
        "[tool.demitasse]\noptimize = false\n[tool.other]\nx = 1"
    )
    (tmp_path / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "er")

    assert settings.get("optimize") is False
    assert settings.where("optimize").endswith("pyproject.toml")


def test_a_foreign_pyproject_is_none_of_our_business(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nx = 1")

    assert settings.where("optimize") == "default"


DAMAGED = ["tool = 3", "[tool]\ndemitasse = 3", "x = " + "9" * 5000, "x = " + "[" * 50_000, "[["]


@pytest.mark.parametrize(
    "text", DAMAGED, ids=["no table", "no table of ours", "digits", "depth", "no TOML"]
)
def test_a_damaged_pyproject_is_none_of_our_business_either(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text)

    assert settings.where("optimize") == "default"


@pytest.mark.parametrize("text", DAMAGED[2:], ids=["digits", "depth", "no TOML"])
def test_a_damaged_settings_file_is_reported(tmp_path, text):
    (tmp_path / "demitasse.toml").write_text(text)

    with expect_error(ConfigError, ErrorCode.UNREADABLE, file=str(tmp_path / "demitasse.toml")):
        settings.get("optimize")


def test_a_settings_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "demitasse.toml").write_text('device = "readonly"', encoding="utf-8-sig")

    assert str(choose_device()[0]) == "readonly"


def test_values_that_cannot_be_read_name_their_source(tmp_path, monkeypatch):
    monkeypatch.setenv("DEMITASSE_OPTIMIZE", "perhaps")
    with expect_error(ConfigError, setting="optimize", got="perhaps", where="DEMITASSE_OPTIMIZE"):
        settings.get("optimize")
    monkeypatch.delenv("DEMITASSE_OPTIMIZE")
    (tmp_path / "demitasse.toml").write_text("optimize = = 1")
    with expect_error(ConfigError, ErrorCode.UNREADABLE, file=str(tmp_path / "demitasse.toml")):
        settings.get("optimize")


REFUSED = [
    ("threads", -3, ErrorCode.OUT_OF_RANGE),
    ("threads", 2.5, ErrorCode.INVALID),
    ("threads", True, ErrorCode.INVALID),
    ("threads", 100_000, ErrorCode.OUT_OF_RANGE),
    ("memory_limit", 10**400, ErrorCode.INVALID),
    ("seed", -2, ErrorCode.OUT_OF_RANGE),
    ("log_level", "loud", ErrorCode.UNKNOWN),
    ("bad_records", "shrug", ErrorCode.UNKNOWN),
    ("optimize", "perhaps", ErrorCode.INVALID),
]
"""A setting, an invalid value, and the code of its error."""


@pytest.mark.parametrize(("name", "value", "code"), REFUSED)
def test_a_value_that_is_not_allowed_is_refused_wherever_it_comes_from(
    tmp_path, monkeypatch, name, value, code
):
    with expect_error(ConfigError, code, setting=name, got=value, where="the program"):
        settings.set(name, value)
    with (
        expect_error(ConfigError, code, setting=name, got=value, where="the program"),
        settings.override(winograd=False, **{name: value}),
    ):
        pass
    assert settings.where("winograd") == "default"  # nothing of a refused override stays

    if isinstance(value, bool):
        return  # text is never one
    monkeypatch.setenv(f"DEMITASSE_{name.upper()}", str(value))
    with expect_error(ConfigError, code, setting=name, where=f"DEMITASSE_{name.upper()}"):
        settings.get(name)
    monkeypatch.delenv(f"DEMITASSE_{name.upper()}")
    (tmp_path / "demitasse.toml").write_text(f'{name} = "{value}"')
    with expect_error(ConfigError, code, setting=name, where=str(tmp_path / "demitasse.toml")):
        settings.get(name)


def test_words_are_read_in_any_case(monkeypatch):
    monkeypatch.setenv("DEMITASSE_LOG_LEVEL", "WARNING")

    assert settings.get("log_level") == "warning"


CODE = [
    ("onednn_library", '"/tmp/libdnnl.so.3"', "", '"none"', "none"),
    ("python_layers", "true", True, "false", False),
    ("jit", "true", True, "false", False),
]
"""Settings that decide which code runs: what a file cannot say, the default, what it can say."""


@pytest.mark.parametrize(("name", "permits", "default", "forbids", "forbidden"), CODE)
def test_a_file_may_forbid_code_and_cannot_permit_it(
    tmp_path, caplog, name, permits, default, forbids, forbidden
):
    file = tmp_path / "demitasse.toml"

    file.write_text(f"{name} = {permits}")
    found = [settings.find(name) for _ in range(2)]

    assert [(value.value, value.where) for value in found] == [(default, "default")] * 2
    [warning] = caplog.messages  # once
    assert str(file) in warning
    assert f"DEMITASSE_{name.upper()}" in warning
    assert f"demitasse trust {file}" in warning

    (tmp_path / "pyproject.toml").write_text(f"[tool.demitasse]\n{name} = {forbids}")

    assert settings.get(name) == forbidden
    assert len(caplog.messages) == 1


def test_a_file_cannot_say_where_kernels_are_dumped(tmp_path, caplog):
    (tmp_path / "demitasse.toml").write_text('kernel_dump = "/tmp/elsewhere"')

    assert settings.get("kernel_dump") == ""
    assert "DEMITASSE_KERNEL_DUMP" in caplog.text


def test_code_is_permitted_by_the_environment_and_the_program(tmp_path, monkeypatch):
    (tmp_path / "demitasse.toml").write_text("python_layers = false\njit = false")

    monkeypatch.setenv("DEMITASSE_ONEDNN_LIBRARY", "libdnnl.so.3")
    monkeypatch.setenv("DEMITASSE_PYTHON_LAYERS", "1")

    assert settings.get("onednn_library") == "libdnnl.so.3"
    assert settings.get("python_layers") is True
    with settings.override(jit=True):
        assert settings.get("jit") is True


@pytest.mark.skipif(shutil.which("cc") is None, reason="no cc to compile a library")
def test_no_library_is_loaded_whoever_names_it(tmp_path):
    library, marker = tmp_path / "stranger.so", tmp_path / "loaded"
    Path("stranger.c").write_text(
        "#include <stdio.h>\n"
        f'__attribute__((constructor)) void run(void) {{ fclose(fopen("{marker}", "w")); }}'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, "stranger.c"], check=True)
    Path("demitasse.toml").write_text(f'onednn_library = "{library}"')
    doctor = [sys.executable, "-m", "demitasse", "doctor"]

    done = subprocess.run(doctor, capture_output=True, text=True, check=False)

    assert not marker.exists()
    assert "demitasse.toml" in done.stderr
    assert "DEMITASSE_ONEDNN_LIBRARY" in done.stderr

    subprocess.run(
        doctor, env={**os.environ, "DEMITASSE_ONEDNN_LIBRARY": str(library)}, check=False
    )

    assert not marker.exists()


@posix
@pytest.mark.parametrize("text", ["seed = 5", "seed = = 5"])
def test_a_settings_file_of_another_user_is_ignored(tmp_path, caplog, monkeypatch, text):
    (tmp_path / "deep").mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.demitasse]\nseed = 7")
    file = tmp_path / "deep" / "demitasse.toml"
    file.write_text(text)
    monkeypatch.chdir(tmp_path / "deep")
    try:
        os.chown(file, 12345, -1)
    except PermissionError:
        pytest.skip("only root gives files away")

    values = [settings.get("seed") for _ in range(2)]

    assert values == [7, 7]  # of the next folder
    [warning] = caplog.messages
    assert str(file) in warning
    assert "12345" in warning


@posix
def test_files_of_root_and_of_the_user_count(tmp_path, monkeypatch):
    file = tmp_path / "demitasse.toml"
    file.write_text("seed = 5")

    def seen_by(user):
        monkeypatch.setattr(os, "geteuid", lambda: user)
        return settings.get("seed")

    owner = file.stat().st_uid
    assert seen_by(owner) == 5
    assert seen_by(owner + 1) == (5 if owner == 0 else -1)


@posix
@pytest.mark.parametrize(("mode", "own_group"), [(0o664, False), (0o646, False), (0o666, True)])
def test_a_settings_file_that_others_can_write_is_ignored_until_they_cannot(
    tmp_path, caplog, monkeypatch, mode, own_group
):
    file = tmp_path / "demitasse.toml"
    file.write_text("seed = 5")
    group = file.stat().st_gid
    monkeypatch.setattr(os, "getegid", lambda: group if own_group else group + 1)

    file.chmod(mode)

    assert settings.get("seed") == -1
    [warning] = caplog.messages
    assert str(file) in warning
    assert "chmod go-w" in warning

    file.chmod(0o644)

    assert settings.get("seed") == 5


@posix
def test_a_settings_file_may_be_writable_for_the_users_own_group(tmp_path, caplog, monkeypatch):
    file = tmp_path / "demitasse.toml"
    file.write_text("seed = 5")
    monkeypatch.setattr(os, "getegid", lambda: file.stat().st_gid)

    file.chmod(0o664)

    assert settings.get("seed") == 5
    assert caplog.messages == []


@posix
def test_a_foreign_pyproject_without_settings_is_not_warned_of(tmp_path, caplog):
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nx = 1")
    (tmp_path / "pyproject.toml").chmod(0o666)

    assert settings.where("seed") == "default"
    assert caplog.messages == []


def test_an_unknown_setting_names_the_known_ones():
    with expect_error(ConfigError, ErrorCode.UNKNOWN, setting="devise", mentions="'device'"):
        settings.get("devise")


OLD_NAMES = [(setting.old_name, name) for name, setting in TABLE.items() if setting.old_name]


@pytest.fixture
def unwarned(monkeypatch):
    """Forget which deprecated names were reported."""
    monkeypatch.setattr(deprecated, "_warned", set())


@pytest.mark.parametrize(("old", "new"), OLD_NAMES)
@pytest.mark.usefixtures("unwarned")
def test_an_old_name_of_a_setting_works_everywhere_and_is_reported_once(
    tmp_path, monkeypatch, caplog, old, new
):
    value = TABLE[new].choices[-1] if TABLE[new].choices else "1"
    mine = Settings()

    with expect_warning(DeprecationWarning, mentions=[old, new]):
        mine.set(old, value)
    assert mine.get(old) == mine.get(new) == TABLE[new].value_of(value)
    with mine.override(**{old: None}):
        assert mine.where(new) == "default"
    mine.set(new, None)
    monkeypatch.setenv(f"DEMITASSE_{old.upper()}", value)
    assert [mine.where(new), mine.where(new)] == [f"DEMITASSE_{old.upper()}"] * 2
    assert mine.get_often(new) == TABLE[new].value_of(value)
    monkeypatch.delenv(f"DEMITASSE_{old.upper()}")
    if old != "import":  # from a trusted file only
        (tmp_path / "demitasse.toml").write_text(f'{old} = "{value}"')
        assert mine.where(new) == str(tmp_path / "demitasse.toml")

    for place in (f"DEMITASSE_{old.upper()}", "demitasse.toml")[: 1 if old == "import" else 2]:
        [record] = [one for one in caplog.records if place in one.getMessage()]
        assert new.upper() in record.getMessage().upper()


@pytest.mark.usefixtures("unwarned")
def test_old_values_of_a_setting_work_and_are_reported(monkeypatch, caplog):
    mine = Settings()

    with expect_warning(DeprecationWarning, mentions=["transfers=error", "transfers=raise"]):
        mine.set("transfers", "error")
    assert mine.get("transfers") == "raise"
    monkeypatch.setenv("DEMITASSE_GPU_FALLBACK", "error")
    assert mine.get("gpu_fallback") == "raise"

    [record] = caplog.records
    assert "gpu_fallback=raise" in record.getMessage()


def test_an_override_ends_with_its_block():
    mine = Settings()

    with mine.override(seed=5):
        inside = mine.get("seed")

    assert (inside, mine.get("seed")) == (5, -1)


def test_an_override_takes_back_its_own_value_and_nothing_else():
    mine = Settings()

    with mine.override(seed=5):
        mine.set("threads", 2)
        mine.set("seed", 7)
        inside = mine.get("seed")

    assert inside == 5
    assert (mine.get("threads"), mine.get("seed")) == (2, 7)


def test_overrides_of_two_threads_may_end_in_any_order():
    mine, seen = Settings(), []
    first, second = mine.override(seed=1), mine.override(seed=2, threads=4)

    first.__enter__()
    second.__enter__()
    seen.append(mine.get("seed"))
    first.__exit__(None, None, None)
    seen.append(mine.get("seed"))
    second.__exit__(None, None, None)
    seen.append(mine.get("seed"))

    assert seen == [2, 2, -1]
    assert mine.get("threads") == 0


def test_an_override_may_take_back_what_the_program_set():
    mine = Settings()
    mine.set("seed", 7)

    with mine.override(seed=None):
        assert mine.where("seed") == "default"

    assert mine.get("seed") == 7


def test_a_kept_value_follows_the_program_the_environment_and_the_folder(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "demitasse.toml").write_text("seed = 5")
    seen = []

    def look():
        seen.append(settings.get_often("seed"))

    look()
    monkeypatch.chdir(tmp_path / "deep")
    look()
    monkeypatch.setenv("DEMITASSE_SEED", "6")
    look()
    with settings.override(seed=7):
        look()
    look()

    assert seen == [-1, 5, 6, 7, 6]


def test_a_kept_value_asks_no_file_again(tmp_path, monkeypatch):
    settings.get_often("seed")

    monkeypatch.setattr(
        "demitasse.core.config.store.nearest_files", lambda folder: pytest.fail("file search")
    )

    assert settings.get_often("seed") == -1


def test_errors_say_where():
    error = errors.ShapeError("it is 3, it should be 4").at("layer 'ip1'").from_line("a.prototxt:6")

    assert str(error.at("net 'n'")) == (
        "net 'n': layer 'ip1': it is 3, it should be 4  [a.prototxt:6]"
    )
    assert str(PrototxtError("no", "a", 1, 2)) == "a:1:2: no"
    assert str(DataError("no", "db", "007")) == "db, record '007': no"


def test_every_error_is_in_the_tree():
    for name in set(errors.__all__) - {"ErrorCode"}:
        assert issubclass(getattr(errors, name), errors.DemitasseError)
        assert name in (errors.__doc__ or "")


@posix
def test_a_working_directory_that_is_gone_has_no_settings_file(tmp_path, monkeypatch, caplog):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    files.warn_once.cache_clear()  # some other test may have been warned before

    assert settings.get("optimize") is True
    assert settings.get_often("threads") == 0
    assert settings.where("device") == "default"
    import_plugins()

    [record] = caplog.records
    assert (record.name, record.levelname) == ("demitasse.core.config.files", "WARNING")


def test_variables_that_tests_are_told_by_are_known():
    root = Path(__file__).parents[2]
    files = [root / "noxfile.py", *(root / "tests").rglob("*.py")]
    asked = re.compile(r"""environ(?:\.get\(|\[)["'](DEMITASSE_[A-Z_]+)["']""")
    found = {name for file in files for name in asked.findall(file.read_text(encoding="utf-8"))}

    known = {setting.variable for setting in TABLE.values()} | OTHER_VARIABLES.keys()

    assert found <= known
    assert "DEMITASSE_KILLS" in found

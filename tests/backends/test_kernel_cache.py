"""Machine code on the disk: what is run of it, and what is not."""

import errno
import os
import stat
from pathlib import Path

import pytest
from needs import needs

from demitasse.backends import kernel_cache as kept

pytestmark = needs("modes")

CODE = b"machine code"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of the user's own, in which something is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept.warn_once.cache_clear()
    before = os.umask(0o002)  # as where every user has a group of their own
    kept.write_code("a.o", CODE)
    os.umask(before)
    return tmp_path / "cache" / "demitasse" / "kernels"


def test_what_was_kept_is_there_and_the_users_alone(place):
    assert kept.read_code("a.o") == CODE

    for folder in (place, place.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in (place / "a.o", place.with_name("kernels.key")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_bears_no_seal_of_the_key_is_not_run(place):
    content = (place / "a.o").read_bytes()
    (place / "b.o").write_bytes(content)  # another kernel's
    (place / "a.o").write_bytes(content[:-1] + b"!")

    assert kept.read_code("a.o") is None
    assert kept.read_code("b.o") is None


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_not_run_but_written_anew(place, mode):
    (place / "a.o").chmod(mode)
    assert kept.read_code("a.o") is None

    kept.write_code("a.o", CODE)

    assert kept.read_code("a.o") == CODE


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
@pytest.mark.parametrize("which", ["kernels", "demitasse"])
def test_a_folder_that_others_can_write_is_left_alone_and_warned_of(place, mode, which, caplog):
    folder = place if which == "kernels" else place.parent
    folder.chmod(mode)

    kept.write_code("b.o", CODE)

    assert kept.read_code("a.o") is None
    assert not (place / "b.o").exists()
    [line] = caplog.messages
    assert str(folder) in line


def test_what_is_another_users_is_left_alone(place, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(place / "a.o", 12345, 12345)
    assert kept.read_code("a.o") is None

    os.chown(place, 12345, 12345)
    kept.write_code("b.o", CODE)

    assert not (place / "b.o").exists()


def test_a_key_that_others_can_read_is_replaced(place):
    key = place.with_name("kernels.key")
    key.chmod(0o644)

    assert kept.read_code("a.o") is None
    kept.write_code("a.o", CODE)

    assert kept.read_code("a.o") == CODE
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_a_pipe_a_link_or_a_folder_is_not_read(place):
    (place / "real").write_bytes((place / "a.o").read_bytes())
    (place / "a.o").unlink()
    (place / "a.o").symlink_to(place / "real")
    os.mkfifo(place / "pipe.o")
    (place / "folder.o").mkdir()

    for name in ("a.o", "pipe.o", "folder.o"):
        assert kept.read_code(name) is None
        kept.write_code(name, CODE)

    assert kept.read_code("a.o") == kept.read_code("pipe.o") == CODE
    assert kept.read_code("folder.o") is None


def test_a_relative_cache_folder_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")

    assert kept.folder() == tmp_path / ".cache" / "demitasse" / "kernels"


def test_a_cache_folder_of_links_in_a_circle_is_told_once(place, monkeypatch, caplog, tmp_path):
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    monkeypatch.setenv("XDG_CACHE_HOME", str(circle))

    kept.write_code("b.o", CODE)

    assert kept.read_code("b.o") is None
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert str(circle) in record.getMessage()


def test_the_key_is_flushed_to_the_disk_and_code_is_not(place, monkeypatch):
    flushed = []
    monkeypatch.setattr(os, "fsync", flushed.append)

    kept.write_code("b.o", CODE)

    assert kept.read_code("b.o") == CODE
    assert flushed == []

    place.with_name("kernels.key").unlink()
    kept.write_code("b.o", CODE)

    assert kept.read_code("b.o") == CODE
    assert flushed


def test_a_full_disk_is_told_once_and_harms_nothing(place, monkeypatch, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)

    kept.write_code("b.o", CODE)
    kept.write_code("c.o", CODE)

    assert kept.read_code("b.o") is None
    assert kept.read_code("a.o") == CODE
    [line] = caplog.messages
    assert str(kept.folder()) in line
    assert "No space left" in line

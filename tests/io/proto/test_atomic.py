"""Files are replaced whole or not at all."""

import os
import sys
from pathlib import Path

import pytest
from expect_error import expect_error

from demitasse.core import atomic
from demitasse.core.atomic import atomic_write, put_in_place


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_appears_with_its_content(tmp_path):
    with atomic_write(tmp_path / "net.caffemodel") as file:
        file.write(b"weights")

    assert (tmp_path / "net.caffemodel").read_bytes() == b"weights"
    assert names(tmp_path) == ["net.caffemodel"]


def test_the_old_file_is_whole_until_the_new_one_is(tmp_path):
    path = tmp_path / "state"
    path.write_bytes(b"old")

    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"

    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "state"
    path.write_bytes(b"old")

    def write_half():
        with atomic_write(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        write_half()

    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["state"]


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "state"
    path.write_bytes(b"old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with expect_error(OSError, mentions=["Errno 28", str(path)]), atomic_write(path) as file:
        file.write(b"new")

    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["state"]


def test_a_missing_folder_is_an_error_that_names_it(tmp_path):
    missing = tmp_path / "nowhere" / "x"
    with expect_error(FileNotFoundError, mentions=str(missing)), atomic_write(missing):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")
def test_permissions_of_the_old_file_are_kept_and_new_ones_follow_the_umask(tmp_path):
    kept, plain, made = tmp_path / "kept", tmp_path / "plain", tmp_path / "made"
    kept.write_bytes(b"")
    kept.chmod(0o640)
    plain.write_bytes(b"")

    for path in (kept, made):
        with atomic_write(path) as file:
            file.write(b"x")

    assert kept.stat().st_mode & 0o777 == 0o640
    assert made.stat().st_mode == plain.stat().st_mode


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need rights on Windows")
def test_a_link_keeps_pointing_to_the_file_that_was_written(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    link.symlink_to(real)

    with atomic_write(link) as file:
        file.write(b"new")

    assert link.is_symlink()
    assert real.read_bytes() == b"new"


def test_a_library_may_write_by_name(tmp_path):
    with atomic_write(tmp_path / "data.h5") as file, open(file.name, "wb") as other:  # noqa: PTH123
        other.write(b"by name")

    assert (tmp_path / "data.h5").read_bytes() == b"by name"


def test_a_long_name_has_room_for_the_temporary_one(tmp_path):
    path = tmp_path / ("x" * 250)

    with atomic_write(path) as file:
        file.write(b"x")

    assert names(tmp_path) == [path.name]


def test_what_killed_processes_left_is_deleted_and_nothing_else(tmp_path):
    left, left_folder = tmp_path / ".net.0123abcd.part", tmp_path / ".db.89abcdef.part"
    at_work, users = tmp_path / ".net.11111111.part", tmp_path / ".net.part"
    left_folder.mkdir()
    for path in (left, at_work, users, left_folder / "data.mdb"):
        path.write_bytes(b"half")
    for path in (left, users, left_folder / "data.mdb", left_folder):
        os.utime(path, (1e9, 1e9))

    with atomic_write(tmp_path / "other"):
        pass

    assert names(tmp_path) == [at_work.name, users.name, "other"]


def folders(tmp_path):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    return tmp_path / "new", tmp_path / "old"


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX systems")
def test_nothing_takes_the_place_of_a_pipe_or_a_device(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")

    for name in ("pipe", "link"):
        writing = atomic_write(tmp_path / name)
        with expect_error(OSError, mentions=name), writing as file:
            file.write(b"net")

    assert names(tmp_path) == ["link", "pipe"]
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_folder_takes_the_place_of_another(tmp_path, monkeypatch, exchanges):
    if not exchanges:
        monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    new, old = folders(tmp_path)

    put_in_place(new, old)

    assert names(tmp_path) == ["old"]
    assert names(old) == ["new"]


def test_a_folder_that_cannot_take_the_place_leaves_the_old_one(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    new, old = folders(tmp_path)
    rename = Path.rename

    def broken(path, target):
        if path == new:
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", broken)
    with expect_error(OSError, mentions="Input/output"):
        put_in_place(new, old)

    assert names(old) == ["old"]
    assert names(tmp_path) == ["new", "old"]

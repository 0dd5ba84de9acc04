"""Files are replaced whole or not at all."""

import contextlib
import errno
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from expect_error import expect_error
from needs import needs

from demitasse.core import atomic
from demitasse.core.atomic import atomic_write, partial_folder, put_in_place


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


def test_a_folder_is_refused_before_anything_is_written(tmp_path):
    with expect_error(IsADirectoryError, mentions=str(tmp_path)), atomic_write(tmp_path):
        pytest.fail("it is open")

    assert names(tmp_path) == []


@needs("modes")
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


@needs("links")
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


def test_a_folder_that_cannot_be_made_has_its_own_name_in_the_error(tmp_path, monkeypatch):
    """Anyone, root too, is refused here, as in a folder that is read-only."""

    def refuse(path, *mode):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(PermissionError) as caught, partial_folder(tmp_path / "data"):
        pass

    assert caught.value.filename == str(tmp_path / "data")


WRITER = """
import sys, time
from pathlib import Path
from demitasse.core.atomic import atomic_write, partial_folder
path = Path(sys.argv[1])
with atomic_write(path / "net") as file, partial_folder(path / "db") as folder:
    file.write(b"half"), file.flush()
    (folder / "data.mdb").write_bytes(b"half")
    print("ready", flush=True)
    time.sleep(600)
"""


@contextlib.contextmanager
def writer(folder):
    """Start a process that writes a file and a folder and does not complete them."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, folder], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline().split() == [b"ready"]
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def clear(folder):
    """Write a file, as a new process does."""
    atomic._cleared.clear()
    with atomic_write(folder / "other"):
        pass


def age(folder):
    for path in folder.rglob("*"):
        os.utime(path, (1e9, 1e9))


@needs("locks")
def test_what_a_killed_process_left_is_deleted_when_it_is_old(tmp_path):
    with writer(tmp_path):
        pass
    assert len(names(tmp_path)) == 2

    clear(tmp_path)
    assert len(names(tmp_path)) == 3
    age(tmp_path)
    clear(tmp_path)

    assert names(tmp_path) == ["other"]


@needs("locks")
def test_what_a_living_process_writes_is_never_deleted(tmp_path):
    with writer(tmp_path):
        before = names(tmp_path)
        age(tmp_path)
        clear(tmp_path)

        assert names(tmp_path) == [*before, "other"]
        assert len(before) == 2


@needs("locks")
def test_without_locks_nothing_is_deleted(tmp_path, monkeypatch):
    with writer(tmp_path):
        pass
    age(tmp_path)

    def refuse(handle, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(atomic.fcntl, "flock", refuse)
    clear(tmp_path)

    assert len(names(tmp_path)) == 3


USERS = (
    ".net.0123abcd.part", ".net.part", ".0123abcd.part", ".net.0123456789abcdef.0123abcd.part",
    "net.0123abcd.part", ".a.b.cafecafe.part", ".net.0123456789abcdef.0123abcd.old",
)  # fmt: skip


@needs("links")
@pytest.mark.parametrize("kind", ["files", "folders", "links"])
def test_nothing_of_the_user_is_deleted(tmp_path, kind):
    with writer(tmp_path):
        pass
    [left] = [path for path in tmp_path.iterdir() if path.is_file()]
    ours = left.name
    key = ours.split(".")[-2]
    place, target = tmp_path / kind, tmp_path / "target"
    place.mkdir(), target.mkdir()
    (target / "thesis").write_bytes(b"mine")
    imitations = (ours.replace(".net.", ".mine."), ours.replace(key, "00000000"), f"{ours}.part")
    for name in (*USERS, *imitations, *([ours] if kind == "links" else ())):
        if kind == "files":
            (place / name).write_bytes(b"mine")
        elif kind == "folders":
            (place / name / "sub").mkdir(parents=True)
            (place / name / "sub" / "a.jpg").write_bytes(b"mine")
        else:
            (place / name).symlink_to(target)
    before = names(place)
    age(tmp_path)

    clear(place)

    assert names(place) == sorted([*before, "other"])
    assert names(target) == ["thesis"]


def test_a_name_in_any_script_has_room_for_the_temporary_one(tmp_path):
    path = tmp_path / ("ё" * 120)

    with atomic_write(path) as file:
        file.write(b"x")

    assert names(tmp_path) == [path.name]


POSIX = needs("modes")


def mode_of(path):
    return path.stat().st_mode & 0o7777


@POSIX
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o400, 0o000, 0o4711, 0o666])
@pytest.mark.parametrize("umask", [0o022, 0o000, 0o077])
def test_a_temporary_file_is_never_more_accessible_than_its_target(tmp_path, mode, umask):
    path = tmp_path / "w"
    path.write_bytes(b"old")
    path.chmod(mode)
    before = os.umask(umask)
    try:
        with atomic_write(path) as file:
            [temporary] = [one for one in tmp_path.iterdir() if one != path]
            assert mode_of(temporary) & ~0o600 & ~mode == 0
            assert mode_of(temporary) & 0o077 == 0
            file.write(b"new")
    finally:
        os.umask(before)

    assert mode_of(path) == mode


@needs("modes")
def test_a_file_that_gets_a_mode_while_it_is_rewritten_keeps_the_mode(tmp_path):
    path = tmp_path / "w"
    with atomic_write(path) as file:
        path.write_bytes(b"another process's")
        path.chmod(0o600)
        file.write(b"new")

    assert path.stat().st_mode & 0o077 == 0


root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs the rights of root"
)


@root
def test_owner_and_group_are_kept(tmp_path):
    path = tmp_path / "w"
    path.write_bytes(b"old")
    os.chown(path, 1234, 4321)
    path.chmod(0o4750)

    with atomic_write(path) as file:
        file.write(b"new")

    status = path.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (1234, 4321, 0o4750)


@POSIX
def test_without_the_right_to_keep_the_group_its_members_get_less(tmp_path, monkeypatch):
    path = tmp_path / "w"
    path.write_bytes(b"old")
    path.chmod(0o2754)
    status = path.stat()

    class Other:
        """A file of another owner and group."""

        st_uid, st_gid, st_mode = status.st_uid + 1, status.st_gid + 1, status.st_mode

    def refuse(*arguments):
        raise PermissionError

    stat = Path.stat
    monkeypatch.setattr(os, "chown", refuse)
    monkeypatch.setattr(Path, "stat", lambda self, **how: Other if self == path else stat(self))
    atomic.copy_attributes(path, made(tmp_path))
    monkeypatch.undo()

    assert mode_of(tmp_path / "made") == 0o744


def made(folder):
    (folder / "made").write_bytes(b"")
    return folder / "made"


def extended(path, name, value):
    """Set an extended attribute, or skip the test."""
    try:
        os.setxattr(path, name, value)
    except (AttributeError, OSError):
        pytest.skip(f"no attribute {name} here")


def acl(*entries):
    """Return an ACL in the form of Linux: of tag, rights and identity."""
    parts = (struct.pack("<HHI", tag, rights, who) for tag, rights, who in entries)
    return struct.pack("<I", 2) + b"".join(parts)


NOBODY = 0xFFFFFFFF
ACL = acl((1, 6, NOBODY), (2, 4, 1234), (4, 0, NOBODY), (16, 4, NOBODY), (32, 0, NOBODY))
"""Owner rw, user 1234 r, group none, mask r, others none."""


def test_extended_attributes_are_kept(tmp_path):
    path = tmp_path / "w"
    path.write_bytes(b"old")
    extended(path, "user.origin", b"here")

    with atomic_write(path) as file:
        file.write(b"new")

    assert os.getxattr(path, "user.origin") == b"here"


@needs("modes")
def test_an_acl_is_kept_and_none_is_inherited(tmp_path):
    path, plain = tmp_path / "w", tmp_path / "plain"
    path.write_bytes(b"old"), plain.write_bytes(b"old")
    plain.chmod(0o600)
    extended(path, "system.posix_acl_access", ACL)
    inherited = acl((1, 7, NOBODY), (2, 7, 77), (4, 7, NOBODY), (16, 7, NOBODY), (32, 7, NOBODY))
    extended(tmp_path, "system.posix_acl_default", inherited)

    for one in (path, plain):
        with atomic_write(one) as file:
            file.write(b"new")

    assert os.getxattr(path, "system.posix_acl_access") == ACL
    assert "system.posix_acl_access" not in os.listxattr(plain)
    assert mode_of(plain) == 0o600


@POSIX
def test_other_hard_links_keep_the_old_content(tmp_path):
    path, backup = tmp_path / "w", tmp_path / "backup"
    path.write_bytes(b"old")
    backup.hardlink_to(path)

    with atomic_write(path) as file:
        file.write(b"new")

    assert (path.read_bytes(), backup.read_bytes()) == (b"new", b"old")


@POSIX
def test_a_private_folder_stays_private_when_another_takes_its_place(tmp_path):
    new, old = folders(tmp_path)
    (new / "data.mdb").write_bytes(b"new"), (old / "data.mdb").write_bytes(b"old")
    (old / "old").chmod(0o640), (old / "data.mdb").chmod(0o600), old.chmod(0o750)

    put_in_place(new, old)

    assert names(old) == ["data.mdb", "new"]
    assert [mode_of(path) for path in (old, old / "data.mdb", old / "new")] == [0o750, 0o600, 0o600]


def folders(tmp_path):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    return tmp_path / "new", tmp_path / "old"


@needs("named pipes")
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

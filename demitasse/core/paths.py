"""Paths: resolve file names from prototxts, read regular files, explain failures."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TypeGuard

from demitasse.core.text import suggestion
from demitasse.errors import ConfigError, DataError, ErrorCode

ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # error numbers of a missing file

MAX_NEIGHBOURS = 2000
"""Largest number of files in a folder that are compared with a missing file's name."""


def resolve_path(name: str, base: Path | None = None) -> Path:
    """Return the path of the file or folder ``name``.

    The working directory comes first, as in Caffe, so that its command lines keep working. The
    folder ``base`` of the prototxt that names the file comes second, so that a model's folder can
    be used from anywhere. If neither exists, the path is that in the working directory, so that
    the error on opening it shows the path as written.

    Raises:
        ConfigError: The name is too long, or contains a zero byte.
    """
    path, place = Path(name), f"file name {name!r}"
    if "\0" in name:
        message = "the name contains a zero byte"
        raise ConfigError(message, code=ErrorCode.INVALID, file=name).at(place)
    try:
        if not _exists(path) and not path.is_absolute() and base is not None:
            beside = base / path
            return beside if _exists(beside) else path
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(reason, code=ErrorCode.INVALID, file=name).at(place) from None
    return path


def rooted_path(root: str, name: str, base: Path | None = None) -> Path:
    """Return the path of a file in a list, below a root.

    Caffe joins both as text, so that ``folder/prefix_`` is a root, too. If there is no such file,
    and the root has no slash at its end, a slash joins them. If neither exists, the path is as in
    Caffe.

    Raises:
        ConfigError: The name is too long, or contains a zero byte.
    """
    path = resolve_path(f"{root}{name}", base)
    if not root or root.endswith(("/", os.sep)) or _exists(path):
        return path
    below = resolve_path(f"{root}/{name}", base)
    return below if _exists(below) else path


def _exists(path: Path) -> bool:
    """Return True if a file exists; unlike ``Path.exists``, refuse impossible names."""
    try:
        path.stat()
    except OSError as error:
        if error.errno not in ABSENT:
            raise
        return False
    return True


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return the path without symbolic links; circular links stay unresolved.

    Before Python 3.13 ``Path.resolve`` raises a RuntimeError for circular links.
    """
    return Path(os.path.realpath(path))


def regular_file(path: str | os.PathLike[str]) -> Path:
    """Return the path; refuse pipes, devices and sockets, which may never end.

    A folder passes, since opening one raises a clear error.

    Raises:
        OSError: The path is missing, invalid, or a pipe, a device or a socket.
    """
    try:
        mode = Path(path).stat().st_mode
    except ValueError as error:  # a zero byte, or characters that cannot be encoded
        message = f"invalid file name: {error}"
        raise OSError(errno.EINVAL, message, os.fspath(path)) from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        message = "got a pipe, a device or a socket, expected a regular file"
        raise OSError(errno.EINVAL, message, os.fspath(path))
    return Path(path)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        OSError: The file is not regular, cannot be read, or exceeds the memory.
    """
    with _memory_errors_of(path):
        return regular_file(path).read_bytes()


def read_text(path: str | os.PathLike[str], errors: str = "surrogateescape") -> str:
    """Return the text of a regular UTF-8 file, with newlines as line ends and no byte order mark.

    Raises:
        OSError: The file is not regular, cannot be read, or exceeds the memory.
    """
    with _memory_errors_of(path):
        return regular_file(path).read_text(encoding="utf-8-sig", errors=errors)


@contextmanager
def _memory_errors_of(path: str | os.PathLike[str]) -> Iterator[None]:
    """Convert a MemoryError to an OSError that names the file: a sparse file has any size."""
    try:
        yield
    except MemoryError:
        message = "the file is larger than the available memory"
        raise OSError(errno.ENOMEM, message, os.fspath(path)) from None


def is_file(name: str | Path) -> bool:
    """Return True if a file of that name exists; False for impossible names."""
    return os.path.isfile(Path(name))  # noqa: PTH113 - Path.is_file raises for some


def is_text(source: object) -> TypeGuard[str]:
    """Return True for a prototxt in a string, which has lines or braces and names no file."""
    return isinstance(source, str) and ("\n" in source or "{" in source) and not is_file(source)


def is_folder(name: str | Path) -> bool:
    """Return True if a folder of that name exists; False for impossible names."""
    return os.path.isdir(Path(name))  # noqa: PTH112 - as in is_file


def read_failure(error: OSError, path: str | os.PathLike[str]) -> str:
    """Return the reason why a file cannot be read; for a missing file, with a similar name."""
    reason = error.strerror or str(error)
    return reason + similar_file(path) if error.errno == errno.ENOENT else reason


def check_exists(path: Path) -> None:
    """Raise a DataError, with a similar name, unless a file or folder exists."""
    try:
        path.stat()
    except (OSError, ValueError) as error:
        reason = read_failure(error, path) if isinstance(error, OSError) else str(error)
        code = code_of(error) if isinstance(error, OSError) else ErrorCode.INVALID
        raise DataError(reason, str(path), code=code, file=str(path)) from None


def reason_of(error: BaseException, path: str | os.PathLike[str] | None = None) -> str:
    """Return the message of an error; of the system's, its reason and its file unless ``path``."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    name = None if error.filename is None else os.fsdecode(error.filename)
    if name is None or (path is not None and name == os.fspath(path)):
        return error.strerror
    return f"{name!r}: {error.strerror}"


def code_of(error: Exception) -> ErrorCode:
    """Return the code of an error for a file that cannot be read."""
    absent = isinstance(error, OSError) and error.errno in ABSENT
    return ErrorCode.NOT_FOUND if absent else ErrorCode.UNREADABLE


def similar_file(path: str | os.PathLike[str]) -> str:
    """Return "; did you mean ...?" with the most similar name in the folder, or nothing.

    Where a relative path has no such folder, return that folder and the working directory.
    """
    folder = Path(path).parent
    try:
        beside = [entry.name for entry in islice(os.scandir(folder), MAX_NEIGHBOURS)]
    except (FileNotFoundError, NotADirectoryError):
        with suppress(OSError):  # the working directory may be missing, too
            there = f"; there is no folder '{folder}' in {Path.cwd()}"
            return "" if folder.is_absolute() else there
        return ""
    except (OSError, ValueError):
        return ""
    return suggestion(Path(path).name, beside)

"""What systems differ in. ``@needs("fork")`` skips a test where the system lacks its subject.

Only what a system lacks by its nature belongs here. A test that fails on a system for another
reason shows a fault of the package, or expects what only one system does.
"""

import os
import sys

import pytest

NOT_LINUX = {
    "/dev/full",  # a disk that is always full
    "/proc",
    "affinity",
    "limits of memory",
    "names of any bytes",
}
LACKING = {
    "darwin": NOT_LINUX,
    "win32": {
        *NOT_LINUX,
        "LMDBs of few pages",  # the library extends a file to the size of its map there
        "a POSIX shell",
        "an error for long names",  # such files are missing
        "deletion of open files",  # and of folders in use
        "fork",
        "holes in files",
        "limits of processes",  # beside those of memory
        "links",  # symbolic ones are for administrators there
        "locks",  # that end with a process and do not hinder readers
        "mprotect",
        "modes",  # and owners of files
        "named pipes",
        "names of any characters",
        "names in UTF-8",  # they are any 16-bit words there
        "signals",  # from one process to another, which ends in order
    },
}
"""What systems lack."""


def needs(*names: str) -> pytest.MarkDecorator:
    """Return a marker that skips a test if this system lacks one of these, and names it."""
    assert LACKING["win32"].issuperset(names), names
    lacking = [name for name in names if name in LACKING.get(sys.platform, ())]
    return pytest.mark.skipif(bool(lacking), reason=f"{sys.platform} has no {', '.join(lacking)}")


def slashes(text: str) -> str:
    """Return text with the paths of POSIX."""
    return text.replace(os.sep, "/")


def reason(path: str) -> str:
    """Return the system's words for a path that cannot be found."""
    try:
        os.stat(path)  # noqa: PTH116 - Python's own message follows
    except OSError as error:
        return error.strerror
    raise AssertionError(path)


NO_SUCH_FILE = reason("no-such-file")

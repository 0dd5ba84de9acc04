"""What a call opens, writes, starts or evaluates, by Python's audit events."""

import os
import sys
from contextlib import contextmanager
from pathlib import Path

from reader import is_putting

STARTS = (
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork",
    "socket.connect", "socket.bind", "socket.getaddrinfo", "urllib.Request", "pickle.find_class",
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate",
    "os.chmod", "os.chown", "shutil.rmtree", "shutil.copyfile", "code.__new__",
)  # fmt: skip
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Watch:
    """Notes what should not happen while a file is read; stays for the rest of the process.

    Args:
        folder: Where files may be read.

    Attributes:
        seen: What has happened since ``watching`` began.
    """

    def __init__(self, folder: Path) -> None:
        self.seen: list[str] = []
        self._armed = self._opens = False
        root = Path(__file__).parents[2]
        self._places = tuple(
            f"{path}/" for path in (folder, root, sys.prefix, sys.base_prefix, "/proc", "/sys")
        )
        sys.addaudithook(self._event)

    @contextmanager
    def watching(self, *, opens: bool):
        """Note what happens in the block; ``opens``: any file may be read."""
        self.seen.clear()
        self._opens, self._armed = opens, True
        try:
            yield
        finally:
            self._armed = False

    def _event(self, name: str, args: tuple) -> None:
        if not self._armed or is_putting():
            return
        if name == "open":
            self._opened(args[0], args[2] or 0)
        elif name in STARTS and not (name == "os.mkdir" and Path(args[0]).is_dir()):
            self.seen.append(f"{name}{args!r}"[:200])
        elif name == "exec" and not self._known(getattr(args[0], "co_filename", "")):
            self.seen.append(f"exec of {args[0]!r}"[:200])

    def _opened(self, path: object, flags: int) -> None:
        if not isinstance(path, (str, bytes)):
            return
        name = os.fsdecode(path)
        if flags & WRITES and name != os.devnull:
            self.seen.append(f"writes {name!r}"[:200])
        elif not self._opens and not self._known(name):
            self.seen.append(f"opens {name!r}"[:200])

    def _known(self, name: str) -> bool:
        if name.startswith("<"):  # what the library makes, as dataclasses do
            return name in {"<string>", "<frozen importlib._bootstrap>"}
        return os.path.abspath(name).startswith(self._places)  # noqa: PTH100 - links are not followed

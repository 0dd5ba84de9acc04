"""What is fuzzed: a reader of untrusted files, sound files to damage, and a call that reads one."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.message import Message

from demitasse.errors import DemitasseError

__all__ = ["Call", "Reader", "is_putting", "nothing_changes", "put"]

Call = Callable[[bytes], None]

_putting = [False]


@dataclass(frozen=True)
class Reader:
    """What is fuzzed.

    Attributes:
        name: What it reads.
        files: Sound files.
        call: Reads one; raises AssertionError where a failure has changed something.
        cost: Rough time of one call, in microseconds.
        form: What the files are messages of, as text or not; their fields are changed, too.
        repair: Makes checksums and lengths right again in a damaged file; used on every second.
        allowed: What its documentation says it raises, besides our own exceptions.
        opens: Whether it may open files that the one it reads names.
        draw: Makes files at random, which then are not damaged.
    """

    name: str
    files: list[bytes] = field(repr=False)
    call: Call = field(repr=False)
    cost: int
    form: tuple[type[Message], bool] | None = None
    repair: Callable[[bytes], bytes] | None = None
    allowed: tuple[type[Exception], ...] = ()
    opens: bool = False
    draw: Callable[[random.Random], bytes] | None = None


def put(path: Path, content: bytes) -> Path:
    """Write the file that is to be read; this is none of the reader's doing."""
    _putting[0] = True
    try:
        path.write_bytes(content)
    finally:
        _putting[0] = False
    return path


def is_putting() -> bool:
    """Whether ``put`` is at work."""
    return _putting[0]


@contextmanager
def nothing_changes(look: Callable[[], object]) -> Iterator[None]:
    """Fail if a refusal has changed what ``look`` returns."""
    before = look()
    try:
        yield
    except DemitasseError:
        assert look() == before, "a failure has changed something"
        raise

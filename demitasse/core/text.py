"""Text for messages: escape untrusted text, suggest similar names, read and write sizes.

Also HTML of objects in notebooks: the package's ``__init__`` sets the renderer, which is loaded
when a notebook asks for HTML.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

# Control characters, among them terminal sequences; marks that change the writing direction;
# Unicode line separators; unpaired surrogates, which no file can contain.
SPECIAL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

MAX_NAME = 200  # characters of the longest name that is compared: comparing megabytes takes minutes

UNITS = ("bytes", "KiB", "MiB", "GiB")
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b|bytes?)?", re.IGNORECASE)
POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

MAX_SIZE = 2.0**64  # largest size in bytes that ``read_size`` accepts


def escaped(text: str, *, one_line: bool = False) -> str:
    """Return text with special characters in Python's notation; newlines, too, with ``one_line``.

    Escape sequences in the text stay unchanged.
    """
    if text.isascii() and text.isprintable():
        return text
    text = SPECIAL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
    return text.replace("\n", "\\n") if one_line else text


def nearest(name: str, known: Iterable[str], count: int = 1, cutoff: float = 0.7) -> list[str]:
    """Return the known names most similar to ``name``, best first, ignoring case."""
    if len(name) > MAX_NAME:
        return []
    from difflib import get_close_matches  # for an error only

    folded = {one.casefold(): one for one in known}
    return [folded[near] for near in get_close_matches(name.casefold(), folded, count, cutoff)]


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the most similar known name, or an empty string."""
    near = nearest(name, known)
    return f"; did you mean {near[0]!r}?" if near else ""


def bytes_text(size: float) -> str:
    """Return a number of bytes with a binary unit, e.g. ``1.5 MiB``."""
    for unit in UNITS:
        if size < 1024 or unit == UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"


def seconds_text(seconds: float) -> str:
    """Return a time in its two largest units, e.g. ``3 h 20 min``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    while not parts[0][0] and len(parts) > 1:
        parts.pop(0)
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count or unit == "s")


def command_line(*words: str | os.PathLike[str]) -> str:
    """Return a command of ``demitasse`` as a line for a shell, with quoted words.

    The line has the path with which the program was started if ``PATH`` has no program of this
    name, as in an environment that is not activated.
    """
    started, found = sys.argv[0], shutil.which("demitasse")
    is_program = Path(started).name in {"demitasse", "demitasse.exe"}
    if found and (not is_program or os.path.realpath(found) == os.path.realpath(started)):
        program = "demitasse"
    elif is_program:
        program = shell_words(started)
    else:
        program = shell_words(sys.executable, "-m", "demitasse")
    return f"{program} {shell_words(*words)}"


def shell_words(*words: str | os.PathLike[str]) -> str:
    """Return words as a line for the system's shell, quoted where the shell needs quotes."""
    texts = [os.fspath(word) for word in words]
    return import_module("subprocess").list2cmdline(texts) if os.name == "nt" else shlex.join(texts)


def read_size(value: object) -> int:
    """Return the bytes in ``8GiB``, ``500 MB``, ``1.5g`` or a number.

    ``GiB`` and ``g`` alone are powers of 1024, ``GB`` of 1000.

    Raises:
        ValueError: The value is not a size, or exceeds ``MAX_SIZE``.
    """
    match = SIZE.fullmatch(str(value).strip())
    if match is None or isinstance(value, bool):
        message = f"got {value!r}, expected a size such as 8GiB, 500MiB or a number of bytes"
        raise ValueError(message)
    number, letter, binary, byte = match.groups()
    base = 1000 if letter and byte and not binary else 1024
    size = float(number) * base ** POWERS[letter.lower()]
    if size > MAX_SIZE:
        message = f"got {value!r}, which exceeds 64-bit addresses; use 0 for no limit"
        raise ValueError(message)
    return int(size)


_renderer: list[str] = []


def set_renderer(module: str, function: str) -> None:
    """Set the function that renders an object, by name."""
    _renderer[:] = [module, function]


def html_of(thing: object) -> str:
    """Return the HTML of a net, a blob, a layer, a solver or a table."""
    module, function = _renderer
    html: str = getattr(import_module(module), function)(thing)
    return html

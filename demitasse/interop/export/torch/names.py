"""Names of layers and blobs as names of Python: in no other way a prototxt becomes code."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable

__all__ = ["Names", "literal", "number", "sizes", "told"]

LONGEST = 60
"""Characters of a name; longer ones are cut."""


class Names:
    """Gives each thing a name of Python that no other thing has.

    Args:
        taken: Names that are not given.
        kind: What a name begins with that would begin with a digit, or be empty.
    """

    def __init__(self, taken: Iterable[str], kind: str) -> None:
        self.taken = set(taken)
        self.kind = kind

    def give(self, text: str) -> str:
        """Return a name that reads like a text; ``_2``, ``_3``, ... tell equal ones apart."""
        plain = re.sub(r"[^0-9a-zA-Z]+", "_", text).strip("_")[:LONGEST]
        if not plain or plain[0].isdigit():
            plain = f"{self.kind}_{plain}".rstrip("_")
        name, count = plain, 1
        while name in self.taken or keyword.iskeyword(name) or keyword.issoftkeyword(name):
            count += 1
            name = f"{plain}_{count}"
        self.taken.add(name)
        return name


def literal(text: str) -> str:
    """Return a string of Python's, in ASCII and double quotes where that takes no backslash."""
    shown = ascii(text)
    if shown[0] == "'" and '"' not in shown:
        return '"' + shown[1:-1].replace("\\'", "'") + '"'
    return shown


def told(text: str) -> str:
    """Return a text for a docstring, which it cannot end: one line of plain characters."""
    return re.sub(r'[^ -~]|["\\]', "?", text)[:LONGEST]


def number(value: float) -> str:
    """Return a number, as short as floats of 32 bits allow."""
    import numpy as np

    single = float(str(np.float32(value)))
    shown = single if np.float32(single) == np.float32(value) else float(value)
    return repr(shown) if np.isfinite(shown) else f'float("{shown}")'


def sizes(values: Iterable[int]) -> str:
    """Return a tuple of whole numbers; one number where all are equal, as PyTorch takes it."""
    every = tuple(map(int, values))
    return str(every[0]) if len(set(every)) == 1 else str(every)

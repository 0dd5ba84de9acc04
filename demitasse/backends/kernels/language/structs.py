"""What a kernel is given: integers of 64 bits with names, in memory that Python fills.

A struct is a class with a sentence for each of its fields::

    class Rows(Struct):
        at: Word
        '''Address of the first row.'''
        row_bytes: Word
        '''Bytes from one row to the next.'''

Python gives a value for every field, ``Rows.values(at=EACH_CALL, row_bytes=64)``, and the kernel
reads them, ``f = Rows.read(k)``, as ``f.at`` and ``f.row_bytes``. A field may be a struct itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from operator import index
from typing import Final, Self, SupportsIndex, get_type_hints

import numpy as np

from demitasse.backends.arrays import address
from demitasse.backends.kernels.language import later, team
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.words import Word

__all__ = ["EACH_CALL", "Arguments", "Struct", "Values"]


class _When(Enum):
    EACH_CALL = "each call"


EACH_CALL: Final = _When.EACH_CALL
"""The value of a field that is given anew whenever the kernel runs."""


class Struct:
    """Fields that are words, or structs themselves; a kernel reads them in the order they have."""

    @classmethod
    def values(cls, **given: SupportsIndex | np.ndarray | Values | _When) -> Values:
        """Return values of all fields: integers, arrays for their addresses, values of structs.

        Raises:
            TypeError: A field has no value, there is no such field, or it is of another kind.
        """
        kinds = _kinds(cls)
        faults = [f"nothing for {name}" for name in kinds if name not in given]
        for name, value in given.items():
            known = name in kinds
            fault = _fault(name, kinds[name], value) if known else f"{name}, which is no field"
            faults += [fault] if fault else []
        if faults:
            message = (
                f"{cls.__name__} was given {', '.join(faults)}; give a value for each of "
                f"{', '.join(kinds)}"
            )
            raise TypeError(message)
        return Values(cls, {name: given[name] for name in kinds})

    @classmethod
    def read(cls, k: Kernel) -> Self:
        """Return the fields of the struct that a kernel's first argument is the address of."""
        return cls._read(iter(k.load_words(k.arguments[0], _count(cls))))

    @classmethod
    def _read(cls, words: Iterator[Word]) -> Self:
        made = cls()
        for name, kind in _kinds(cls).items():
            setattr(made, name, kind._read(words) if issubclass(kind, Struct) else next(words))
        return made


class Values:
    """The values of a struct's fields.

    Args:
        struct: The struct.
        given: By name, all of them.

    Attributes:
        flat: The same with names like "x.at" for fields of structs, in the kernel's order.
        arrays: Those whose addresses are among them; they live as long as this.
    """

    def __init__(
        self, struct: type[Struct], given: Mapping[str, SupportsIndex | np.ndarray | Values | _When]
    ) -> None:
        self.struct = struct
        self.flat: dict[str, int | _When] = {}
        self.arrays: list[np.ndarray] = []
        for name, value in given.items():
            if isinstance(value, Values):
                self.flat |= {f"{name}.{inner}": n for inner, n in value.flat.items()}
                self.arrays += value.arrays
            elif isinstance(value, np.ndarray):
                self.flat[name] = address(value)
                self.arrays.append(value)
            else:
                self.flat[name] = value if value is EACH_CALL else index(value)


class Arguments:
    """A struct's values in memory, for a kernel to be run with.

    Args:
        values: Of all fields.
    """

    def __init__(self, values: Values) -> None:
        self._kept = values.arrays
        self._each_call: dict[str, int] = {}
        self._words = np.zeros(len(values.flat), np.int64)
        self._at = address(self._words)
        self._put_off = -1
        for place, (name, value) in enumerate(values.flat.items()):
            if value is EACH_CALL:
                self._each_call[name] = place
            else:
                self._words[place] = value

    def run(
        self, kernel: int, threads: int, each: Mapping[str, int | np.ndarray] | None = None
    ) -> None:
        """Run a kernel on a team, now or with what is put off.

        Args:
            kernel: Its address.
            threads: How many are asked for.
            each: Integers or arrays for the fields whose value is :data:`EACH_CALL`.

        Raises:
            TypeError: One of those is not given, or something else is.
        """
        each = each or {}
        if each.keys() != self._each_call.keys():
            message = (
                f"a kernel is run with {', '.join(each) or 'nothing'}; give it "
                f"{', '.join(self._each_call) or 'nothing'}"
            )
            raise TypeError(message)
        if later.held():
            if self._put_off == later.turn():
                later.flush()  # what it was given last is still to be used
            self._put_off = later.turn()
        for name, value in each.items():
            self._words[self._each_call[name]] = (
                address(value) if isinstance(value, np.ndarray) else value
            )
        team.run(kernel, self._at, threads, (self, each), self._fixed)

    def _fixed(self) -> tuple[int, np.ndarray]:
        """Return the address of a copy of what the kernel is given now, and the copy."""
        words = self._words.copy()
        return address(words), words


_known: dict[type, dict[str, type]] = {}


def _kinds(struct: type[Struct]) -> dict[str, type]:
    """Return what each field is, by name; those of the class it is derived from come first."""
    if struct not in _known:
        _known[struct] = get_type_hints(struct)
    return _known[struct]


def _count(struct: type[Struct]) -> int:
    kinds = _kinds(struct).values()
    return sum(_count(kind) if issubclass(kind, Struct) else 1 for kind in kinds)


def _fault(name: str, kind: type, value: object) -> str | None:
    """Return what is wrong with a field's value."""
    if not issubclass(kind, Struct):
        # the protocol is last: asking for it takes long
        fits = isinstance(value, int | np.ndarray | _When | SupportsIndex)
        return None if fits else f"{value!r} for {name}, which is an integer"
    fits = isinstance(value, Values) and value.struct is kind
    return None if fits else f"{value!r} for {name}, which is {kind.__name__}.values(...)"

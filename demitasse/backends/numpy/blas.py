"""The libraries that numpy multiplies matrices with, and how many threads they have in a pass."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from demitasse.config import settings
from demitasse.cores import cores

__all__ = ["blas", "held_to", "wanted_threads"]


@cache
def blas() -> list[Any]:
    """Return numpy's BLAS libraries as they are controlled; none where that cannot be done."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return []
    controller = ThreadpoolController().select(user_api="blas", internal_api="openblas")
    return list(controller.lib_controllers)


def wanted_threads(has: int) -> int:
    """Return how many threads a library that has so many should have.

    That is what the setting says; else no more than there are cores for them, which a library that
    knows of no quota may have.
    """
    return int(settings.get_often("threads")) or min(has, cores())


class _Pass:
    """A pass that is under way."""


_passes: weakref.WeakSet[_Pass] = weakref.WeakSet()
_before: dict[Any, int] = {}
"""How many threads each of numpy's BLAS libraries had before passes changed that."""


@contextmanager
def held_to(threads: int | None = None) -> Iterator[None]:
    """Let numpy's BLAS have so many threads in a pass, None for as many as are wanted.

    What it had comes back when the last pass of the process ends. There is no lock and no count
    that an interrupt could leave taken: a pass counts as long as its frame lives.
    """
    own = _Pass()
    try:
        _passes.add(own)
        for library in blas():
            has = library.get_num_threads()
            wanted = wanted_threads(has) if threads is None else threads
            if has != wanted:
                _before.setdefault(library, has)
                library.set_num_threads(wanted)
        yield
    finally:
        _passes.discard(own)
        if not _passes:
            for library in blas():
                threads = _before.pop(library, 0)
                if threads:
                    library.set_num_threads(threads)

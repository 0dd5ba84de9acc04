"""The libraries that numpy multiplies matrices with, and how many threads they have in a pass."""

from __future__ import annotations

import weakref
from functools import cache
from typing import Any

from demitasse.core.threads import wanted_threads

__all__ = ["blas", "held_to"]


@cache
def blas() -> list[Any]:
    """Return numpy's BLAS libraries as they are controlled; none where that cannot be done."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return []
    controller = ThreadpoolController().select(user_api="blas", internal_api="openblas")
    return list(controller.lib_controllers)


_passes: weakref.WeakSet[held_to] = weakref.WeakSet()
_before: dict[Any, int] = {}
"""Threads of each BLAS library before the first pass."""


class held_to:  # noqa: N801 - is read as what the block is
    """Let numpy's BLAS have so many threads in a pass, None for as many as are wanted.

    What it had comes back when the last pass of the process ends. There is no lock and no count
    that an interrupt could leave taken: a pass counts as long as its frame lives. It is a class,
    for a pass over a small net is not much longer than the two switches of a generator.
    """

    __slots__ = ("__weakref__", "_threads")

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads

    def __enter__(self) -> None:
        """Give the libraries as many."""
        try:
            _passes.add(self)
            for library in blas():
                has = library.get_num_threads()
                wanted = wanted_threads(has) if self._threads is None else self._threads
                if has != wanted:
                    _before.setdefault(library, has)
                    library.set_num_threads(wanted)
        except BaseException:
            held_to.__exit__(self)  # a subclass has entered nothing yet
            raise

    def __exit__(self, *error: object) -> None:
        """Give back what they had, if no other pass goes on."""
        _passes.discard(self)
        if not _passes:
            for library in blas():
                threads = _before.pop(library, 0)
                if threads:
                    library.set_num_threads(threads)

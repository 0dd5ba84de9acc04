"""The first values of a net's parameters, made on all cores."""

from __future__ import annotations

from collections.abc import Iterable

from demitasse.blob import Blob
from demitasse.core.threads import Pool, wanted_threads

__all__ = ["begin"]

WORTH_THREADS = 1 << 18
"""Elements from which on threads are quicker than none."""


def begin(params: Iterable[Blob]) -> None:
    """Make the values of all parameters that nothing was loaded into.

    Raises:
        DemitasseError: There is no memory for one, or there are no threads; others may be made.
    """
    threads = wanted_threads()
    waiting = [blob.data_memory for blob in params if blob.data_memory.deferred]
    waiting.sort(key=lambda memory: -memory.size)
    if sum(memory.size for memory in waiting) < WORTH_THREADS or threads < 2:
        return  # whoever reads them first makes them
    with Pool(threads, "demitasse-begin") as pool:
        list(pool.map(lambda memory: memory.cpu_data(), dict.fromkeys(waiting)))

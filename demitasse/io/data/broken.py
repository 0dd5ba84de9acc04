"""Records that cannot be used: an error, or the next record in their place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from demitasse.core.config import settings
from demitasse.errors import ConfigError, DataError, DemitasseError

__all__ = ["Broken", "RecordError", "nothing_left", "skips"]

Candidate = TypeVar("Candidate")
Item = TypeVar("Item")

logger = logging.getLogger(__name__)

CHOICES = ("raise", "skip")


class RecordError(DataError):
    """A record of a batch cannot be used.

    Attributes:
        index: Its place in the batch.
        broken: Whether the record itself is at fault; if not, another one would not help.
    """

    def __init__(self, message: str, index: int, *, broken: bool = True) -> None:
        super().__init__(message)
        self.index, self.broken = index, broken


def skips(on_error: str) -> bool:
    """Whether broken records are skipped.

    Args:
        on_error: ``"raise"``, ``"skip"``, or an empty string for what the setting says.

    Raises:
        ConfigError: It is none of those.
    """
    choice = on_error or str(settings.get("bad_records"))
    if choice not in CHOICES:
        message = f"on_error is {choice!r}; it must be one of {', '.join(CHOICES)}"
        raise ConfigError(message)
    return choice == "skip"


def nothing_left(source: str) -> DataError:
    """Return the error for an epoch whose last batch would be empty."""
    return DataError("nothing of the last batch can be used; change the batch size", source)


class Broken:
    """Refuses broken records, or counts those that are skipped and logs one in every pass.

    Records are numbered consecutively through all passes. Where a broken one is skipped, the next
    good one stands in for it; it comes again in its own place. So what a position in a batch holds
    depends on its number alone, whatever the batches and the number of ranks. In whole epochs,
    which count, the batch becomes smaller instead.

    Args:
        layer: Name of the layer, for the log.
        skip: Whether to skip them.
        count: How many were skipped before.
    """

    def __init__(self, layer: str = "", *, skip: bool = False, count: int = 0) -> None:
        self.skip, self.count = skip, count
        self._layer = layer
        self._logged = -1  # the last pass that was spoken of

    def find(
        self, read: Callable[[Candidate], Item], candidates: Iterable[Candidate]
    ) -> tuple[Item | None, DataError | None]:
        """Return the first good record of some; several threads may call it at once.

        Args:
            read: Returns a record; raises DataError for a broken one.
            candidates: The record that is wanted, and after it those that may stand in for it.

        Returns:
            The record, or None where there is no good one, or the wanted one is broken and broken
            ones are refused; and what is wrong with the wanted one, or None.
        """
        fault = None
        for candidate in candidates:
            try:
                return read(candidate), fault
            except DataError as error:
                fault = fault or error
                if not self.skip:
                    break
        return None, fault

    def find_one(
        self,
        read: Callable[[Candidate], Item],
        candidates: Iterable[Candidate],
        pass_: int | None = None,
    ) -> Item:
        """Return the first good record of some, where there has to be one.

        Args:
            read: As for ``find``.
            candidates: As for ``find``.
            pass_: As for ``note``; None leaves a broken one uncounted.

        Raises:
            DataError: There is no good record; says what is wrong with the wanted one.
        """
        item, fault = self.find(read, candidates)
        if fault is not None and pass_ is not None:
            self.note(fault, pass_)
        if item is None:
            raise fault or DataError("there are no records")
        return item

    def note(self, error: DemitasseError, pass_: int) -> None:
        """Count a broken record.

        Args:
            error: What is wrong with it; names it.
            pass_: Which pass over all records this is, from 0.

        Raises:
            DemitasseError: ``error``, where broken records are not skipped.
        """
        if not self.skip:
            raise error
        self.count += 1
        if pass_ != self._logged:
            self._logged = pass_
            logger.warning(
                "layer %r skips a record, %d so far; others of this pass are only counted: %s",
                self._layer,
                self.count,
                error,
            )

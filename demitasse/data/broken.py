"""What becomes of records that cannot be used: an error, or the next record in their place."""

from __future__ import annotations

import logging

from demitasse.config import settings
from demitasse.errors import ConfigError, DataError, DemitasseError

__all__ = ["Broken", "RecordError", "skips"]

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
    choice = on_error or str(settings.get("on_error"))
    if choice not in CHOICES:
        message = f"on_error is {choice!r}; it must be one of {', '.join(CHOICES)}"
        raise ConfigError(message)
    return choice == "skip"


class Broken:
    """Refuses broken records, or counts those that are skipped and logs one in every pass.

    Args:
        layer: Name of the layer, for the log.
        skip: Whether to skip them.
        count: How many were skipped before.
    """

    def __init__(self, layer: str = "", *, skip: bool = False, count: int = 0) -> None:
        self.skip, self.count = skip, count
        self._layer = layer
        self._logged = -1  # the last pass that was spoken of

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

"""Errors of records and their files; policy: raise the error, or read the next record instead."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self, TypeVar

from demitasse.core.config import settings
from demitasse.core.extras import lacks_extra
from demitasse.core.paths import code_of, read_bytes, reason_of
from demitasse.errors import ConfigError, DataError, DemitasseError, ErrorCode
from demitasse.io.data.redaction import quoted

Candidate = TypeVar("Candidate")
Item = TypeVar("Item")

logger = logging.getLogger(__name__)

CHOICES = ("raise", "skip")


class RecordError(DataError):
    """A record of a batch cannot be used: the one at ``index`` of the batch.

    ``broken`` is False if another record would fail as well.
    """

    def __init__(
        self, message: str, index: int, *, broken: bool = True, code: ErrorCode | None = None,
        **details: object,
    ) -> None:  # fmt: skip
        super().__init__(message, None, None, code=code, **details)
        self.index, self.broken = index, broken

    @classmethod
    def of(cls, error: DemitasseError, index: int) -> Self:
        """Return the error of a record as an error of its batch."""
        found = cls(error.message, index, code=error.code)
        found.details = error.details
        return found


def read_file(path: Path) -> bytes:
    """Return the bytes of a data file; a DataError if the file cannot be read."""
    try:
        return read_bytes(path)
    except OSError as error:
        raise DataError(reason_of(error, path), str(path), code=code_of(error)) from error


def located(error: DemitasseError, source: str, key: str | None = None) -> DataError:
    """Return an error as a DataError of a file or database, and of a record in it."""
    found = DataError(error.message, source, key, code=error.code)
    found.details = error.details
    return found


def located_entry(error: DemitasseError, source: str, key: str) -> DataError:
    """Return an error as a DataError of an entry of a list, with the path of the data file."""
    found, file = located(error, source, key), getattr(error, "source", None)
    if file is not None and file not in {source, key} and quoted(file, 0) == file:
        found.message = f"{file}: {found.message}"
    return found


def skips(on_error: str) -> bool:
    """Return True if bad records are skipped; an empty choice means the setting ``bad_records``."""
    choice = on_error or str(settings.get("bad_records"))
    if choice not in CHOICES:
        message = f"got on_error {choice!r}, expected one of {', '.join(CHOICES)}"
        raise ConfigError(message, code=ErrorCode.INVALID, field="on_error", got=choice)
    return choice == "skip"


def nothing_left(source: str) -> DataError:
    """Return the error for an epoch whose last batch would be empty."""
    message = "no record of the last batch can be used; change the batch size"
    return DataError(message, source, code=ErrorCode.NOT_FOUND)


class BadRecordPolicy:
    """Raise an error for a bad record, or count skipped records and log one per epoch.

    Records are numbered consecutively over all epochs. With ``skip``, the next good record replaces
    a bad record and is read again at its own position. Thus a record depends on its number alone,
    for any batch size and number of processes. In whole epochs the batch becomes smaller instead.
    """

    def __init__(self, layer: str = "", *, skip: bool = False, count: int = 0) -> None:
        self.skip, self.count = skip, count
        self._layer = layer
        self._logged_epoch = -1

    def find(
        self, read: Callable[[Candidate], Item], candidates: Iterable[Candidate]
    ) -> tuple[Item | None, DataError | None]:
        """Return the first good record, and the error of the wanted record if that is bad.

        The candidates are the wanted record, then its replacements. The record is None if no
        candidate is good, or if the wanted record is bad and bad records are not skipped. Several
        threads may call this.
        """
        fault = None
        for candidate in candidates:
            try:
                return read(candidate), fault
            except DataError as error:
                fault = fault or error
                if not self.skip or lacks_extra(error):
                    break
        return None, fault

    def find_one(
        self,
        read: Callable[[Candidate], Item],
        candidates: Iterable[Candidate],
        pass_: int | None = None,
    ) -> Item:
        """Return the first good record, or raise its error; count bad ones in epoch ``pass_``."""
        item, fault = self.find(read, candidates)
        if fault is not None and pass_ is not None:
            self.note(fault, pass_)
        if item is None:
            message = "there are no records"
            raise fault or DataError(message, code=ErrorCode.NOT_FOUND)
        return item

    def note(self, error: DemitasseError, pass_: int) -> None:
        """Count a bad record of epoch ``pass_``, or raise its error if none may be skipped."""
        if not self.skip:
            raise error
        self.count += 1
        if pass_ != self._logged_epoch:
            self._logged_epoch = pass_
            logger.warning(
                "layer %r skipped a bad record, %d so far; "
                "further ones of this epoch are counted only: %s",
                self._layer,
                self.count,
                error,
            )

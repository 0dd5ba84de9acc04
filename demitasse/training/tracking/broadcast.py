"""Numbers of a run to several loggers, of which none can end the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from demitasse.core.log import get_logger
from demitasse.training.tracking.logger import Logger

__all__ = ["Broadcast"]

log = get_logger(__name__)

GIVEN_UP = 3
"""Failures in a row after which a logger is not called any more."""

Facts = Mapping[str, object]


class Broadcast:
    """Tells loggers of a run.

    One that fails is told of once, and left alone when it goes on failing.

    Args:
        loggers: The loggers; more may be added to the list at any time.
        about: Asked for the facts of the event ``begin``.
    """

    def __init__(self, loggers: Sequence[Logger], about: Callable[[], Facts]) -> None:
        self._loggers, self._about = loggers, about
        self._begun: set[int] = set()
        self._failures: Counter[int] = Counter()
        self._told: set[int] = set()

    def begin(self) -> None:
        """Say ``begin`` with what comes next: the run goes on from somewhere else."""
        self._begun.clear()

    def scalars(self, iteration: int, values: Mapping[str, float]) -> None:
        """Hand numbers to every logger."""
        self._each(iteration, lambda logger: logger.scalars(iteration, values))

    def event(self, iteration: int, kind: str, facts: Facts) -> None:
        """Hand an event to every logger."""
        self._each(iteration, lambda logger: logger.event(iteration, kind, facts))

    def close(self) -> None:
        """Close every logger."""
        for logger in self._loggers:
            self._attempt(logger, lambda one: one.close())

    def _each(self, iteration: int, tell: Callable[[Logger], None]) -> None:
        def begin(logger: Logger) -> None:
            logger.event(iteration, "begin", self._about())

        for logger in self._loggers:
            if id(logger) not in self._begun:
                self._begun.add(id(logger))
                self._attempt(logger, begin)
            self._attempt(logger, tell)

    def _attempt(self, logger: Logger, tell: Callable[[Logger], None]) -> None:
        key = id(logger)
        if self._failures[key] >= GIVEN_UP:
            return
        try:
            tell(logger)
        except Exception as error:  # whatever a service's client raises, the run goes on
            self._failures[key] += 1
            if key not in self._told:
                self._told.add(key)
                log.error(
                    "%s failed, and its record of this run has gaps; training goes on: %s: %s",
                    logger, type(error).__name__, error,
                )  # fmt: skip
        else:
            self._failures[key] = 0

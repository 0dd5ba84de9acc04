"""What keeps the numbers of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

__all__ = ["Logger"]


class Logger(Protocol):
    """Takes numbers and events of a run, in ``solver.loggers``.

    Iterations can come again: a run that is resumed goes on from its snapshot. What comes later
    counts.
    """

    def scalars(self, iteration: int, values: Mapping[str, float]) -> None:
        """Take numbers by name.

        Args:
            iteration: Number of updates made before.
            values: ``loss``, ``smoothed_loss``, ``learning_rate``, ``iterations_per_second``,
                ``images_per_second``, ``data_wait`` (a share, 0 to 1), ``train/NAME`` for outputs
                of the net, ``test0/NAME`` for those of the first test net, ``gradient_norm``. Not
                all come at once.
        """

    def event(self, iteration: int, kind: str, facts: Mapping[str, object]) -> None:
        """Take note of something that happened.

        Args:
            iteration: Number of updates made before.
            kind: ``begin`` when a run begins or goes on, ``snapshot``, ``environment``, and
                ``distributions`` with histograms of ``parameters``.
            facts: About it, as JSON knows values: text, numbers, lists, mappings.
        """

    def close(self) -> None:
        """Write what is not written yet; nothing comes after it."""

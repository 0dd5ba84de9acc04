"""What goes wrong between processes."""

from __future__ import annotations

from demitasse.errors import DemitasseError

__all__ = ["ParallelError"]


class ParallelError(DemitasseError):
    """Another process failed, is lost, or does not answer in time; the message names it."""

"""Loggers by what a command line calls them: ``jsonl:PATH``, ``tensorboard:DIR``, ..."""

from __future__ import annotations

from collections.abc import Callable

from demitasse.core.text import suggestion
from demitasse.errors import ConfigError, DemitasseError, ErrorCode
from demitasse.training.tracking.json_lines import JsonLines
from demitasse.training.tracking.logger import Logger
from demitasse.training.tracking.mlflow_runs import MlflowRun
from demitasse.training.tracking.tensorboard import TensorBoard
from demitasse.training.tracking.weights_and_biases import WeightsAndBiases

__all__ = ["FORMS", "KINDS", "open_logger"]

MAKERS: dict[str, Callable[[str], Logger]] = {
    "jsonl": JsonLines,
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MlflowRun,
}

KINDS = tuple(MAKERS)

FORMS = "jsonl:PATH, tensorboard:DIR, wandb:PROJECT or mlflow:EXPERIMENT"


def open_logger(target: str) -> Logger:
    """Return the logger of a target.

    Args:
        target: ``jsonl:PATH``, ``tensorboard:DIR``, ``wandb:PROJECT`` or ``mlflow:EXPERIMENT``.

    Raises:
        ConfigError: There is no such kind, nothing follows it, its library is not installed or
            fails, as that of a service does which cannot be reached.
        OSError: A file or folder cannot be written.
    """
    kind, _, place = target.partition(":")
    if kind not in MAKERS or not place:
        near = "" if kind in MAKERS else suggestion(kind, MAKERS)
        message = f"numbers of a run cannot be logged to {target!r}{near}; write {FORMS}"
        raise ConfigError(
            message, code=ErrorCode.INVALID if kind in MAKERS else ErrorCode.UNKNOWN, got=target
        )
    try:
        return MAKERS[kind](place)
    except (DemitasseError, OSError):
        raise
    except Exception as error:  # whatever a service's client raises
        message = f"nothing can be logged to {target!r}: {type(error).__name__}: {error}"
        raise ConfigError(message, code=ErrorCode.FAILED, got=target) from error

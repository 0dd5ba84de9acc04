"""A run in an experiment of MLflow."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from demitasse.errors import ConfigError, ErrorCode

__all__ = ["MlflowRun"]

UNKNOWN = re.compile(r"[^\w\-. /]")
"""Characters that names of MLflow's metrics cannot have."""

LONGEST = 500
"""Letters of a fact that MLflow has room for."""


class MlflowRun:
    """Sends numbers by MLflow's own client, to the server that ``MLFLOW_TRACKING_URI`` names.

    Args:
        experiment: Name of the experiment; made where there is none.

    Raises:
        ConfigError: The client is not installed.
    """

    def __init__(self, experiment: str) -> None:
        try:
            from mlflow.entities import Metric
            from mlflow.tracking import MlflowClient
        except ImportError:
            message = "logging to MLflow needs its client; run: pip install 'demitasse[mlflow]'"
            raise ConfigError(message, code=ErrorCode.UNAVAILABLE, extra="mlflow") from None
        self._experiment, self._metric = experiment, Metric
        self._client = MlflowClient()
        known = self._client.get_experiment_by_name(experiment)
        number = known.experiment_id if known else self._client.create_experiment(experiment)
        self._run = self._client.create_run(number).info.run_id

    def scalars(self, iteration: int, values: Mapping[str, float]) -> None:
        """Add a point to the curve of each name."""
        now = int(1000 * time.time())
        metrics = [
            self._metric(UNKNOWN.sub("_", name), value, now, iteration)
            for name, value in values.items()
        ]
        self._client.log_batch(self._run, metrics=metrics)

    def event(self, iteration: int, kind: str, facts: Mapping[str, object]) -> None:
        """Set a tag for each fact; long ones are cut, histograms left out. Of a kind, the last."""
        if kind == "distributions":
            return
        for name, value in {"iteration": iteration, **facts}.items():
            self._client.set_tag(self._run, f"{kind}.{name}", str(value)[:LONGEST])

    def close(self) -> None:
        """Say that the run has ended."""
        self._client.set_terminated(self._run)

    def __repr__(self) -> str:
        return f"the experiment of MLflow {self._experiment!r}"

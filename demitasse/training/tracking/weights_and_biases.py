"""A run in a project of Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.core.log import json_ready
from demitasse.errors import ConfigError, ErrorCode
from demitasse.training.tracking.histograms import histograms

__all__ = ["WeightsAndBiases"]


class WeightsAndBiases:
    """Sends numbers by the service's own client, which takes its settings from ``WANDB_...``.

    Args:
        project: Name of the project.

    Raises:
        ConfigError: The client is not installed.
    """

    def __init__(self, project: str) -> None:
        try:
            import wandb
        except ImportError:
            message = (
                "logging to Weights & Biases needs its client; run: pip install 'demitasse[wandb]'"
            )
            raise ConfigError(message, code=ErrorCode.UNAVAILABLE, extra="wandb") from None
        self._project, self._client = project, wandb
        self._run = wandb.init(project=project)
        # Its own count of steps cannot go back, as a run does that goes on from a snapshot.
        self._run.define_metric("iteration")
        self._run.define_metric("*", step_metric="iteration")

    def scalars(self, iteration: int, values: Mapping[str, float]) -> None:
        """Add a point to the curve of each name."""
        self._run.log({**values, "iteration": iteration})

    def event(self, iteration: int, kind: str, facts: Mapping[str, object]) -> None:
        """Put the facts among what is known of the run; of a kind, the last count."""
        if kind == "distributions":
            shown = {
                name: self._client.Histogram(np_histogram=(list(one.counts), list(one.edges)))
                for name, one in histograms(facts)
            }
            self._run.log({**shown, "iteration": iteration})
            return
        told = {"iteration": iteration, **facts}
        self._run.config.update({kind: json_ready(told)}, allow_val_change=True)

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()

    def __repr__(self) -> str:
        return f"the project of Weights & Biases {self._project!r}"

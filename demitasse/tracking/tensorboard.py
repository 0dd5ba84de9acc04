"""A run as files of events for TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Mapping

from demitasse.errors import ConfigError
from demitasse.log import json_ready

__all__ = ["TensorBoard"]


class TensorBoard:
    """Writes what TensorBoard shows, by tensorboardX.

    Args:
        folder: Where its files go; a run that goes on adds one.

    Raises:
        ConfigError: tensorboardX is not installed.
    """

    def __init__(self, folder: str) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            message = (
                "logging for TensorBoard needs tensorboardX; run: "
                "pip install demitasse[tensorboard]"
            )
            raise ConfigError(message) from None
        self._folder = folder
        self._writer = SummaryWriter(folder)

    def scalars(self, iteration: int, values: Mapping[str, float]) -> None:
        """Add a point to the curve of each name."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, iteration)
        self._writer.flush()

    def event(self, iteration: int, kind: str, facts: Mapping[str, object]) -> None:
        """Add the facts as text."""
        text = json.dumps(json_ready(facts), indent=1)
        indented = "\n".join(f"    {line}" for line in text.splitlines())  # code, in Markdown
        self._writer.add_text(kind, indented, iteration)
        self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        self._writer.close()

    def __repr__(self) -> str:
        return f"the folder of TensorBoard {self._folder!r}"

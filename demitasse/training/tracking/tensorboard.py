"""A run as files of events for TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Mapping

from demitasse.core.log import json_ready
from demitasse.errors import ConfigError, ErrorCode
from demitasse.training.tracking.histograms import histograms

__all__ = ["TensorBoard"]

QUEUE = 1000
"""Events that may wait for tensorboardX's thread: more than a call has, so that none waits for a
thread that ends meanwhile."""


class TensorBoard:
    """Writes what TensorBoard shows, by tensorboardX.

    Args:
        folder: Where its files go; a run that goes on adds one.

    Raises:
        ConfigError: tensorboardX is not installed.
        OSError: The folder cannot be written, or there is no shared memory (``/dev/shm``).
    """

    def __init__(self, folder: str) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            message = (
                "logging for TensorBoard needs tensorboardX; run: "
                "pip install 'demitasse[tensorboard]'"
            )
            raise ConfigError(message, code=ErrorCode.UNAVAILABLE, extra="tensorboard") from None
        self._folder = folder
        try:
            self._writer = SummaryWriter(folder, max_queue=QUEUE)
        except OSError as error:
            if error.filename is not None:
                raise
            message = f"tensorboardX cannot begin, which needs shared memory: {error.strerror}"
            raise OSError(error.errno, message, folder) from error

    def scalars(self, iteration: int, values: Mapping[str, float]) -> None:
        """Add a point to the curve of each name."""
        self._need_thread()
        for name, value in values.items():
            self._writer.add_scalar(name, value, iteration)
        self._writer.flush()

    def event(self, iteration: int, kind: str, facts: Mapping[str, object]) -> None:
        """Add the facts as text, and histograms as such."""
        self._need_thread()
        if kind == "distributions":
            self._histograms(iteration, facts)
            return
        text = json.dumps(json_ready(facts), indent=1)
        indented = "\n".join(f"    {line}" for line in text.splitlines())  # code, in Markdown
        self._writer.add_text(kind, indented, iteration)
        self._writer.flush()

    def _need_thread(self) -> None:
        """See that there is who writes: a queue that nobody empties would stop the run for ever.

        Raises:
            OSError: tensorboardX's thread has ended, as it does when the disk is full.
        """
        events = getattr(self._writer.file_writer, "event_writer", None)
        worker = getattr(events, "_worker", None)
        if worker is not None and not worker.is_alive():
            message = "the thread that writes has ended, as it does where a disk is full"
            raise OSError(message)

    def _histograms(self, iteration: int, facts: Mapping[str, object]) -> None:
        for name, found in histograms(facts):
            self._writer.add_histogram_raw(
                name,
                min=found.low,
                max=found.high,
                num=sum(found.counts),
                sum=found.mean * found.count,
                sum_squares=found.norm**2,
                bucket_limits=found.edges[1:],
                bucket_counts=found.counts,
                global_step=iteration,
            )
        self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        self._writer.close()

    def __repr__(self) -> str:
        return f"the folder of TensorBoard {self._folder!r}"

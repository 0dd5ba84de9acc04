"""Loggers of services, and the histograms of weights and gradients that they get.

TensorBoard, Weights & Biases, and MLflow are called through their own clients.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from textwrap import indent
from typing import Any

from demitasse.core.extras import needs_extra
from demitasse.core.log import json_ready
from demitasse.errors import ConfigError

QUEUE = 1000
"""Events that tensorboardX's thread may have pending: more than one call adds, so that no call
blocks after the thread has ended."""

NOT_IN_NAMES = re.compile(r"[^\w\-. /]")
"""Characters that are not allowed in names of MLflow's metrics."""

LONGEST_TAG = 500  # characters of a value of MLflow's tags


def _client(module: str, service: str, extra: str) -> Any:
    """Return a module of a service's client; raise a ConfigError if it is not installed."""
    with needs_extra(ConfigError, f"logging to {service}", "its client", extra):
        return import_module(module)


class TensorBoard:
    """Writes event files for TensorBoard, with tensorboardX; a run that resumes adds a file.

    An OSError is raised if the folder cannot be written, or without shared memory (``/dev/shm``).
    """

    def __init__(self, folder: str) -> None:
        client = _client("tensorboardX", "TensorBoard", "tensorboard")
        self._folder = folder
        try:
            self._writer = client.SummaryWriter(folder, max_queue=QUEUE)
        except OSError as error:
            if error.filename is not None:
                raise
            message = f"tensorboardX failed to start, and needs shared memory: {error.strerror}"
            raise OSError(error.errno, message, folder) from error

    def scalars(self, iteration: int, values: Mapping[str, float]) -> None:
        """Add a point to the curve of each name."""
        self._check_thread()
        for name, value in values.items():
            self._writer.add_scalar(name, value, iteration)
        self._writer.flush()

    def event(self, iteration: int, kind: str, facts: Mapping[str, object]) -> None:
        """Add the facts as text, or histograms."""
        self._check_thread()
        if kind == "distributions":
            self._add_histograms(iteration, facts)
        else:
            text = json.dumps(json_ready(facts), indent=1)
            self._writer.add_text(kind, indent(text, "    "), iteration)  # code, in Markdown
        self._writer.flush()

    def _check_thread(self) -> None:
        """Check that the writing thread is alive: without it the queue would block for ever."""
        events = getattr(self._writer.file_writer, "event_writer", None)
        worker = getattr(events, "_worker", None)
        if worker is not None and not worker.is_alive():
            message = "the writing thread has ended; the disk may be full"
            raise OSError(message)

    def _add_histograms(self, iteration: int, facts: Mapping[str, object]) -> None:
        for name, histogram in histograms(facts):
            self._writer.add_histogram_raw(
                name,
                min=histogram.low,
                max=histogram.high,
                num=sum(histogram.counts),
                sum=histogram.mean * histogram.count,
                sum_squares=histogram.norm**2,
                bucket_limits=histogram.edges[1:],
                bucket_counts=histogram.counts,
                global_step=iteration,
            )

    def close(self) -> None:
        """Close the files."""
        self._writer.close()

    def __repr__(self) -> str:
        return f"the folder of TensorBoard {self._folder!r}"


class WeightsAndBiases:
    """Sends numbers to Weights & Biases; its client reads its settings from ``WANDB_...``."""

    def __init__(self, project: str) -> None:
        self._project, self._client = project, _client("wandb", "Weights & Biases", "wandb")
        self._run = self._client.init(project=project)
        # The service's own step cannot go back, as that of a run does that resumes.
        self._run.define_metric("iteration")
        self._run.define_metric("*", step_metric="iteration")

    def scalars(self, iteration: int, values: Mapping[str, float]) -> None:
        """Add a point to the curve of each name."""
        self._run.log({**values, "iteration": iteration})

    def event(self, iteration: int, kind: str, facts: Mapping[str, object]) -> None:
        """Add the facts to the configuration of the run; the last event of a kind counts."""
        if kind == "distributions":
            shown: dict[str, object] = {"iteration": iteration}
            for name, histogram in histograms(facts):
                counted = list(histogram.counts), list(histogram.edges)
                shown[name] = self._client.Histogram(np_histogram=counted)
            self._run.log(shown)
            return
        values = {"iteration": iteration, **facts}
        self._run.config.update({kind: json_ready(values)}, allow_val_change=True)

    def close(self) -> None:
        """Send all that is buffered."""
        self._run.finish()

    def __repr__(self) -> str:
        return f"the project of Weights & Biases {self._project!r}"


class MlflowRun:
    """Sends numbers with MLflow's client to the server of ``MLFLOW_TRACKING_URI``."""

    def __init__(self, experiment: str) -> None:
        self._experiment = experiment
        self._metric = _client("mlflow.entities", "MLflow", "mlflow").Metric
        self._client = _client("mlflow.tracking", "MLflow", "mlflow").MlflowClient()
        known = self._client.get_experiment_by_name(experiment)
        number = known.experiment_id if known else self._client.create_experiment(experiment)
        self._run = self._client.create_run(number).info.run_id

    def scalars(self, iteration: int, values: Mapping[str, float]) -> None:
        """Add a point to the curve of each name."""
        now = int(1000 * time.time())
        metrics = [
            self._metric(NOT_IN_NAMES.sub("_", name), value, now, iteration)
            for name, value in values.items()
        ]
        self._client.log_batch(self._run, metrics=metrics)

    def event(self, iteration: int, kind: str, facts: Mapping[str, object]) -> None:
        """Set a tag for each fact, shortened; histograms are dropped. The last event counts."""
        if kind == "distributions":
            return
        for name, value in {"iteration": iteration, **facts}.items():
            self._client.set_tag(self._run, f"{kind}.{name}", str(value)[:LONGEST_TAG])

    def close(self) -> None:
        """Mark the run as ended."""
        self._client.set_terminated(self._run)

    def __repr__(self) -> str:
        return f"the experiment of MLflow {self._experiment!r}"


NUMBERS = ("low", "high", "mean", "norm")

MOST_BINS = 1000  # bins of a histogram that is read from a file


@dataclass(frozen=True)
class Histogram:
    """Distribution of the values of a parameter, or of its gradient."""

    low: float  # the smallest value
    high: float
    mean: float
    norm: float  # L2
    count: int  # of values
    edges: tuple[float, ...]  # of the bins, rising; one more than bins
    counts: tuple[int, ...]  # of sampled values in each bin

    def quantile(self, share: float) -> float:
        """Return the value that a share of the sampled values is below."""
        wanted, below = share * sum(self.counts), 0.0
        for count, (begin, end) in zip(self.counts, pairwise(self.edges), strict=True):
            if count and wanted <= below + count:
                return begin + (end - begin) * (wanted - below) / count
            below += count
        return self.edges[-1]


def histograms(facts: Mapping[str, object]) -> Iterator[tuple[str, Histogram]]:
    """Yield histograms as ``weights/LAYER/INDEX`` and ``gradients/LAYER/INDEX``.

    Invalid histograms are skipped: facts may come from a file.
    """
    parameters = facts.get("parameters")
    for name, kinds in parameters.items() if isinstance(parameters, Mapping) else ():
        for kind in ("weights", "gradients"):
            values = kinds.get(kind) if isinstance(kinds, Mapping) else None
            histogram = _histogram(values) if isinstance(values, Mapping) else None
            if histogram is not None:
                yield f"{kind}/{name}", histogram


def _histogram(values: Mapping[str, object]) -> Histogram | None:
    try:
        low, high, mean, norm = (float(str(values[name])) for name in NUMBERS)
        edges = _numbers(values["edges"])
        counts = [int(number) for number in _numbers(values["counts"])]
        count = int(str(values["count"]))
    except (KeyError, ValueError, OverflowError):
        return None
    rising = all(begin <= end for begin, end in pairwise(edges))
    valid = 0 < len(counts) == len(edges) - 1 <= MOST_BINS and min(counts) >= 0 < sum(counts)
    if not rising or not valid:
        return None
    return Histogram(low, high, mean, norm, count, tuple(edges), tuple(counts))


def _numbers(value: object) -> list[float]:
    return [float(str(one)) for one in value] if isinstance(value, list | tuple) else []

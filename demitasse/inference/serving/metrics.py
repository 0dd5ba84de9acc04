"""Numbers of a server as Prometheus reads them.

Source: Prometheus, *Text-based exposition format*, version 0.0.4.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper ends of the classes that durations are counted in, in seconds."""


@dataclass
class _OfModel:
    """What is counted of one model."""

    answers: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    classes: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0
    batches: int = 0
    requests: int = 0
    items: int = 0
    at_work: float = 0.0


class Metrics:
    """What a server counts; any thread may."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: dict[str, _OfModel] = defaultdict(_OfModel)

    def answered(self, model: str, status: int, seconds: float) -> None:
        """Count an answer to a request for inference, and how long it took."""
        with self._lock:
            counts = self._models[model]
            counts.answers[status] += 1
            counts.classes[bisect_left(BOUNDS, seconds)] += 1
            counts.seconds += seconds

    def ran(self, model: str, requests: int, items: int, seconds: float) -> None:
        """Count a batch that a net has run."""
        with self._lock:
            counts = self._models[model]
            counts.batches += 1
            counts.requests += requests
            counts.items += items
            counts.at_work += seconds

    def text(self, waiting: Mapping[str, int]) -> str:
        """Return all of them.

        Args:
            waiting: Model -> how many of its requests wait at present.
        """
        with self._lock:
            lines = [line for family in self._families(waiting) for line in family]
        return "\n".join(lines) + "\n"

    def _families(self, waiting: Mapping[str, int]) -> Iterator[list[str]]:
        models = sorted(self._models.items())
        answers = {
            f'model="{name}",status="{status}"': count
            for name, one in models
            for status, count in sorted(one.answers.items())
        }
        yield _family("requests_total", "counter", "Answers to requests for inference.", answers)
        yield _durations(models)
        for name, text, values in (
            ("batches_total", "Batches that nets have run.", [one.batches for _, one in models]),
            ("batched_requests_total", "Requests in these.", [one.requests for _, one in models]),
            ("batched_items_total", "Items in these.", [one.items for _, one in models]),
            ("batch_seconds_total", "Time in which nets ran.", [one.at_work for _, one in models]),
        ):
            pairs = zip(models, values, strict=True)
            samples = {f'model="{model}"': value for (model, _), value in pairs}
            yield _family(name, "counter", text, samples)
        lengths = {f'model="{model}"': count for model, count in waiting.items()}
        yield _family("queue_length", "gauge", "Requests that wait.", lengths)


def _family(name: str, kind: str, text: str, samples: Mapping[str, float]) -> list[str]:
    name = f"demitasse_{name}"
    values = [f"{name}{{{labels}}} {value}" for labels, value in samples.items()]
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *values]


def _durations(models: list[tuple[str, _OfModel]]) -> list[str]:
    name = "request_duration_seconds"
    lines = _family(name, "histogram", "From a request to its answer.", {})
    name = f"demitasse_{name}"
    for model, one in models:
        count = 0
        for bound, more in zip((*BOUNDS, "+Inf"), one.classes, strict=True):
            count += more
            lines.append(f'{name}_bucket{{model="{model}",le="{bound}"}} {count}')
        lines += [f'{name}_sum{{model="{model}"}} {one.seconds}']
        lines += [f'{name}_count{{model="{model}"}} {count}']
    return lines

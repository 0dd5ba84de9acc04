"""Counters of the server, as Prometheus' metrics and as Triton's statistics.

Source: Prometheus, *Text-based format*; Triton, *Statistics Extension*.
"""

import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram of durations, in seconds."""


@dataclass
class _Sum:
    """A number of events, and the seconds that they took together."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self.count += count
        self.seconds += seconds

    def as_dict(self) -> dict[str, int]:
        """Return Triton's description, in nanoseconds."""
        return {"count": self.count, "ns": round(self.seconds * 1e9)}


def _total(sums: Mapping[int, _Sum]) -> _Sum:
    return _Sum(sum(one.count for one in sums.values()), sum(one.seconds for one in sums.values()))


@dataclass
class _Counters:
    """Counters of one model: responses by status, batches by number of items."""

    responses: dict[int, _Sum] = field(default_factory=lambda: defaultdict(_Sum))
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))  # of responses
    batches: dict[int, _Sum] = field(default_factory=lambda: defaultdict(_Sum))
    queued: _Sum = field(default_factory=_Sum)  # requests in batches, and their time in the queue
    computed: _Sum = field(default_factory=_Sum)  # the same, and the duration of their batches
    last: int = 0  # time of the last batch, in milliseconds since 1970

    @property
    def items(self) -> int:
        """Number of items in batches."""
        return sum(items * one.count for items, one in self.batches.items())


class Metrics:
    """Counters of the server; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: dict[str, _Counters] = defaultdict(_Counters)

    def add_response(self, model: str, status: int, seconds: float) -> None:
        """Count a response to an inference request, and its duration."""
        with self._lock:
            counts = self._models[model]
            counts.responses[status].add(seconds)
            counts.buckets[bisect_left(BUCKETS, seconds)] += 1

    def add_batch(
        self, model: str, requests: int, items: int, seconds: float, queued: float
    ) -> None:
        """Count a batch; ``queued`` is the time in the queue, added up over the requests."""
        with self._lock:
            counts = self._models[model]
            counts.batches[items].add(seconds)
            counts.queued.add(queued, requests)
            counts.computed.add(seconds * requests, requests)
            counts.last = time.time_ns() // 1_000_000

    def statistics(self, model: str) -> dict[str, object]:
        """Return Triton's statistics of a model.

        Conversions of inputs and outputs are part of the computation here.
        """
        with self._lock:
            one = self._models[model]
            failed = {status: sums for status, sums in one.responses.items() if status != 200}
            none = _Sum().as_dict()
            apart = {"compute_input": none, "compute_output": none}
            return {
                "name": model,
                "version": "1",
                "last_inference": one.last,
                "inference_count": one.items,
                "execution_count": _total(one.batches).count,
                "inference_stats": {
                    "success": one.responses.get(200, _Sum()).as_dict(),
                    "fail": _total(failed).as_dict(),
                    "queue": one.queued.as_dict(),
                    "compute_infer": one.computed.as_dict(),
                    **apart,
                    "cache_hit": none,
                    "cache_miss": none,
                },
                "batch_stats": [
                    {"batch_size": items, "compute_infer": sums.as_dict(), **apart}
                    for items, sums in sorted(one.batches.items())
                ],
                "memory_usage": [],
            }

    def text(self, waiting: Mapping[str, int]) -> str:
        """Return all counters in Prometheus' text format.

        Args:
            waiting: Number of queued requests by model.
        """
        with self._lock:
            return "\n".join([*self._lines(waiting), ""])

    def _lines(self, waiting: Mapping[str, int]) -> Iterator[str]:
        models = sorted(self._models.items())
        yield from _heading("requests_total", "counter", "Answers to requests for inference.")
        for model, one in models:
            for status, sums in sorted(one.responses.items()):
                labels = f'model="{model}",status="{status}"'
                yield f"demitasse_requests_total{{{labels}}} {sums.count}"
        name = "request_duration_seconds"
        yield from _heading(name, "histogram", "From a request to its answer.")
        for model, one in models:
            count = 0
            for bound, more in zip((*BUCKETS, "+Inf"), one.buckets, strict=True):
                count += more
                yield f'demitasse_{name}_bucket{{model="{model}",le="{bound}"}} {count}'
            yield f'demitasse_{name}_sum{{model="{model}"}} {_total(one.responses).seconds}'
            yield f'demitasse_{name}_count{{model="{model}"}} {count}'
        batches = {model: _total(one.batches) for model, one in models}
        for name, kind, text, values in (
            ("batches_total", "counter", "Batches that nets have run.",
             {model: total.count for model, total in batches.items()}),
            ("batched_requests_total", "counter", "Requests in these.",
             {model: one.queued.count for model, one in models}),
            ("batched_items_total", "counter", "Items in these.",
             {model: one.items for model, one in models}),
            ("batch_seconds_total", "counter", "Time in which nets ran.",
             {model: total.seconds for model, total in batches.items()}),
            ("queue_length", "gauge", "Requests that wait.", waiting),
        ):  # fmt: skip
            yield from _heading(name, kind, text)
            for model, value in values.items():
                yield f'demitasse_{name}{{model="{model}"}} {value}'


def _heading(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP demitasse_{name} {text}", f"# TYPE demitasse_{name} {kind}"

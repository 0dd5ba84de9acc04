"""What an exact continuation needs besides weights and history: seed, passes, data positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from demitasse.core.log import get_logger
from demitasse.errors import ErrorCode, SnapshotError
from demitasse.io.proto import ResumeState
from demitasse.net import Net

__all__ = ["check_progress", "progress_of", "set_progress"]

log = get_logger(__name__)

MOST = 1 << 53
"""Passes or records no run gets beyond."""


def progress_of(train: Net, tests: Sequence[Net]) -> ResumeState:
    """Return how far the nets of a solver have come.

    Args:
        train: The training net.
        tests: The test nets.
    """
    resume = ResumeState(seed=train.seed)
    for name, net in _named(train, tests):
        part = resume.net.add(net=name, passes=net.passes)
        for layer in net.layers:
            counters = layer.state()
            if counters:
                progress = part.layer.add(layer=layer.name)
                for key, value in counters.items():
                    progress.counter.add(key=key, value=value)
    return resume


def check_progress(resume: ResumeState) -> None:
    """Refuse a progress that cannot be one.

    Raises:
        SnapshotError: A count is negative or larger than any run can come.
    """
    for net in resume.net:
        counts = [net.passes, *(c.value for layer in net.layer for c in layer.counter)]
        if not 0 <= min(counts) <= max(counts) <= MOST:
            message = f"the state holds an impossible count for the {net.net} net; it is damaged"
            raise SnapshotError(message, code=ErrorCode.CORRUPT, net=net.net)
    numbers = [*resume.snapshot, *(n for w in resume.watch for n in (w.iter, w.tests, w.event))]
    if min(numbers, default=0) < 0:
        message = "the state holds a negative iteration; it is damaged"
        raise SnapshotError(message, code=ErrorCode.CORRUPT)


def set_progress(resume: ResumeState, train: Net | None, tests: Sequence[Net]) -> None:
    """Bring the nets of a solver to where ``progress_of`` found them.

    What the progress does not tell of is left alone, and so is the training net if it is None.
    """
    parts = {part.net: part for part in resume.net}
    for name, net in _named(train, tests):
        if resume.HasField("seed"):
            set_seed(net, resume.seed)
        part = parts.get(name)
        if part is None:
            continue
        net.passes = part.passes
        for progress in part.layer:
            if not net.has_layer(progress.layer):
                log.warning(
                    "The state has a position of layer %r, which the %s net does not have.",
                    progress.layer, name,
                )  # fmt: skip
                continue
            counters = {counter.key: counter.value for counter in progress.counter}
            net.layer_by_name(progress.layer).set_state(counters)


def set_seed(net: Net, seed: int) -> None:
    """Give a net another key of its random numbers; fillers have run and are not repeated."""
    net.seed = seed
    for layer in net.layers:
        layer.context.seed = seed


def _named(train: Net | None, tests: Sequence[Net]) -> Iterator[tuple[str, Net]]:
    if train is not None:
        yield "train", train
    for index, net in enumerate(tests):
        yield f"test {index}", net

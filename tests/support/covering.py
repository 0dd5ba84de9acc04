"""Which cases of a test run in every run of the suite, and which in ``nox -s exhaustive`` alone.

A test with many parameters has a case for each combination of their values. Most of what can go
wrong shows in one value, or in two that meet, so a run of the suite takes those cases in which two
values meet for the first time on a device. Devices that run portable code alone differ from numpy
in how they look at it, not in what is computed: there a test runs once, unless it is marked
``everywhere``.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

import pytest

PORTABLE = ("readonly", "strict:device1")
"""Devices without Steps: what layers run together, or by other code, does not concern them."""

Values = tuple[tuple[str, int], ...]
"""What parameters hold that get their values together, by their names."""

Shown = tuple[object, tuple[Values, ...]]
"""A device, and values that meet on it."""


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark the cases that show nothing new as ``exhaustive``."""
    known: defaultdict[str, set[Shown]] = defaultdict(set)
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is None or any(map(item.get_closest_marker, ("exhaustive", "slow"))):
            continue  # what does not run shows nothing
        seen = known[item.nodeid.partition("[")[0]]
        shown = set(_shown(item, dict(callspec.params)))
        if shown <= seen:
            item.add_marker(pytest.mark.exhaustive)
        seen |= shown


def _shown(item: pytest.Item, params: dict[str, object]) -> Iterator[Shown]:
    """Yield what a case shows."""
    device = params.pop("backend", None) or params.pop("backend_with_steps", None)
    if device in PORTABLE and not item.get_closest_marker("everywhere"):
        yield device, ()
        return
    # the values of a parametrization are the same objects in all of its cases
    values = [tuple((name, id(params[name])) for name in names) for names in _given(item, params)]
    for met in combinations(values, min(2, len(values))):
        yield device, met


def _given(item: pytest.Item, params: Mapping[str, object]) -> Iterator[tuple[str, ...]]:
    """Yield the names of parameters; those that get their values together, together."""
    left = dict.fromkeys(params)
    for marker in item.iter_markers("parametrize"):
        given = marker.args[0]
        names = given.replace(",", " ").split() if isinstance(given, str) else given
        yield tuple(name for name in names if left.pop(name, ()) is None)
    yield from ((name,) for name in left)

"""Choice of the cases of a test that run in every run of the suite, and in sessions of nox.

A test with many parameters has a case for each combination of their values. Most of what can go
wrong shows in one value, or in two that meet, so a run of the suite takes a few cases in which all
values that can meet on a device do: always the one in which most meet for the first time. Tests of
kernels, which compile code for each case, take cases in which all values appear; the further cases
of pairs run in ``nox -s pairs``. Devices that run portable code alone differ from numpy in how they
look at it, not in what is computed: there a test runs once, unless it is marked ``everywhere``. All
other cases run in ``nox -s exhaustive``.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import combinations

import pytest

PORTABLE = ("readonly", "strict:device1")
"""Devices without Steps: what layers run together, or by other code, does not concern them."""

COMPILED = "tests/backends/"
"""Folder of the tests that compile kernels."""

Values = tuple[tuple[str, int], ...]
"""What parameters hold that get their values together, by their names."""

Shown = tuple[object, tuple[Values, ...]]
"""A device, and values that meet on it."""


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark the cases that only ``nox -s pairs`` and ``nox -s exhaustive`` run."""
    tests: defaultdict[str, list[tuple[pytest.Item, set[Shown]]]] = defaultdict(list)
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is None or any(map(item.get_closest_marker, ("exhaustive", "slow"))):
            continue  # what does not run shows nothing
        shown = set(_shown(item, dict(callspec.params)))
        tests[item.nodeid.partition("[")[0]].append((item, shown))
    for name, cases in tests.items():
        spared = set(_spared([shown for _, shown in cases]))
        for number in spared:
            cases[number][0].add_marker(pytest.mark.exhaustive)
        if name.startswith(COMPILED):
            kept = [case for number, case in enumerate(cases) if number not in spared]
            for number in _spared([_singly(shown) for _, shown in kept]):
                kept[number][0].add_marker(pytest.mark.pairs)


def _singly(pairs: Iterable[Shown]) -> set[Shown]:
    """Return the values that meet, each by itself."""
    return {(device, (values,)) for device, met in pairs for values in met or [()]}


def _spared(cases: list[set[Shown]]) -> Iterator[int]:
    """Yield the numbers of cases that show nothing, when those that show most are taken first."""
    seen: set[Shown] = set()
    waiting = [(-len(shown), number) for number, shown in enumerate(cases)]
    heapify(waiting)
    while waiting:
        _, number = heappop(waiting)
        new = cases[number] - seen
        if not new:
            yield number
        elif waiting and (-len(new), number) > waiting[0]:
            heappush(waiting, (-len(new), number))  # another may show more
        else:
            seen |= new


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

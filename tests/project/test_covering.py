"""Which cases of a test run in every run of the suite."""

from itertools import combinations, product
from types import SimpleNamespace

import pytest
from covering import mark

SIZES, ORDERS, PHASES = (1, 2, 3), ("C", "F"), ("TRAIN", "TEST")


class Case:
    """A case as pytest collects it, with what is looked at."""

    def __init__(self, params, given=(), marks=(), folder="tests/net"):
        self.nodeid = f"{folder}/test_x.py::test_x[{params}]"
        self.callspec = SimpleNamespace(params=params)
        self.given, self.marks = given, set(marks)

    def iter_markers(self, name):
        assert name == "parametrize"
        return [SimpleNamespace(args=(names,)) for names in self.given]

    def get_closest_marker(self, name):
        return name if name in self.marks else None

    def add_marker(self, marker):
        self.marks.add(marker.name)

    @property
    def is_kept(self):
        return not {"exhaustive", "pairs"} & self.marks


def cases(*devices, marks=(), **where):
    """All combinations of three parameters, on each device."""
    return [
        Case({"backend": device, "size": size, "order": order, "phase": phase}, (), marks, **where)
        for device, size, order, phase in product(devices, SIZES, ORDERS, PHASES)
    ]


def pairs(cases):
    return {pair for case in cases for pair in combinations(case.callspec.params.items(), 2)}


def test_every_two_values_meet_on_every_device():
    both = cases("numpy", "cpu")

    mark(both)

    kept = [case for case in both if case.is_kept]
    assert pairs(kept) == pairs(both)
    assert len(kept) < len(both)


def test_every_value_is_in_a_case_of_a_kernel_and_the_others_are_marked_for_pairs():
    both = cases("numpy", "cpu", "readonly", folder="tests/backends/kernels")

    mark(both)

    every_run = [case for case in both if case.is_kept]
    for device in ("numpy", "cpu"):
        own = [
            case.callspec.params for case in every_run if case.callspec.params["backend"] == device
        ]
        assert {value for one in own for value in one.values()} == {
            device,
            *SIZES,
            *ORDERS,
            *PHASES,
        }
        assert len(own) == len(SIZES)
    assert len(every_run) == 2 * len(SIZES) + 1
    known = [case for case in both if "exhaustive" not in case.marks]
    hosts = [case for case in both if case.callspec.params["backend"] != "readonly"]
    assert pairs(known) >= pairs(hosts)
    assert len(every_run) < len(known) < len(both)


def test_cases_that_show_most_are_taken():
    names, values = "abcd", range(4)
    found = [Case(dict(zip(names, each, strict=True))) for each in product(values, repeat=4)]

    mark(found)

    kept = [case for case in found if case.is_kept]
    assert pairs(kept) == pairs(found)
    assert len(kept) < 2 * len(values) ** 2  # of two parameters, all combinations are taken


@pytest.mark.parametrize("device", ["readonly", "strict:device1"])
def test_portable_code_runs_once_for_each_test(device):
    found = cases(device)

    mark(found)

    assert [case.is_kept for case in found] == [True] + [False] * (len(found) - 1)


def test_a_test_that_runs_everywhere_does_so_there_too():
    found = cases("strict:device1", marks=["everywhere"])

    mark(found)

    assert pairs([case for case in found if case.is_kept]) == pairs(found)


def test_what_is_left_out_by_its_own_mark_shows_nothing():
    first, second = (Case({"size": 1, "order": "C", "phase": "TEST"}) for _ in range(2))
    first.marks.add("exhaustive")

    mark([first, second])

    assert second.is_kept


def test_no_row_of_a_table_is_left_out():
    rows = [(1, 1), (1, 2), (2, 1), (2, 2)]
    found = [
        Case({"a": a, "b": b, "c": c}, given=["a, b", ("c",)]) for (a, b), c in product(rows, "xy")
    ]

    mark(found)

    assert all(case.is_kept for case in found)


def test_a_test_without_parameters_stays():
    plain = Case({})
    del plain.callspec

    mark([plain])

    assert plain.is_kept

"""Break every lowering of every backend, one after the other, and count the tests that notice.

    python tests/support/mutants.py [--from N] [--count N] [--every N] [numpy] [cpu] [host]

All take many minutes: the number before each line is what ``--from`` takes to go on there, and
``--every 10`` is a sample.

Each mutant is a process that pytest runs in: the lowering declines, its Step computes one wrong
number forward, or one wrong number backward. The tests are the rows of
``test_steps_equal_portable.py`` of that operation. Ends non-zero where a mutant goes unnoticed.
"""

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demitasse.backends import ops
from demitasse.backends.cpu.lowerings import LOWERINGS as CPU
from demitasse.backends.cupy.lowerings import LOWERINGS as CUPY
from demitasse.backends.numpy.lowerings import LOWERINGS as NUMPY
from demitasse.backends.step import AnyStep, Declined, Lowering, Operands

ROOT = Path(__file__).resolve().parents[2]
TESTS = "tests/backends/test_steps_equal_portable.py"
PLACES = {"numpy": NUMPY, "cpu": CPU, "host": CUPY}
"""Where the rows run, and what is broken there."""

OPTIONS = ("-q", "-n0", "-p", "no:cacheprovider", "-m", "not slow and not exhaustive")

KINDS = ("declines", "forward", "backward")

WITHOUT_GRADIENT = (ops.Accuracy,)
"""Operations that nothing is computed backward for."""


class Mutant:
    """One broken lowering, as a plugin of pytest that runs the rows of its operation.

    Attributes:
        ran: How many tests ran.
        noticed: How many of them failed.
    """

    def __init__(self, place: str, op: type, function: str, kind: str) -> None:
        self.place, self.op, self.function, self.kind = place, op, function, kind
        self.ran = self.noticed = 0

    def __str__(self) -> str:
        return f"{self.place:6} {self.op.__name__:12} {self.function:10} {self.kind:9}"

    def apply(self) -> None:
        """Break the lowering in this process."""
        table: Any = PLACES[self.place]
        table[self.op] = tuple(self._broken(lowering) for lowering in table[self.op])

    def _broken(self, lowering: Lowering) -> Lowering:
        def lower(engine: Any, op: Any, at: Operands) -> AnyStep:
            if self.function and op.function != self.function:
                return lowering(engine, op, at)
            if self.kind == "declines":
                raise Declined("broken")
            step = lowering(engine, op, at)
            whole = getattr(step, self.kind)

            def wrong() -> None:
                whole()
                for memory in self._results(at):
                    memory.mutable_cpu_data()[:1] += 1

            setattr(step, self.kind, wrong)
            return step

        return lower

    def _results(self, at: Operands) -> Iterator[Any]:
        if self.kind == "forward":
            yield at.top[0].data_memory
        elif any(at.propagate_down):
            yield at.bottom[at.propagate_down.index(True)].diff_memory
        elif any(at.param_propagate_down):
            yield at.params[at.param_propagate_down.index(True)].diff_memory

    # -- as a plugin -------------------------------------------------------------------------------

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if self._concerns(item)]

    def _concerns(self, item: Any) -> bool:
        given = getattr(item, "callspec", None)
        row = given and given.params.get("row")
        here = row is not None and given.params.get("place") == self.place
        return here and (row.op, row.function) == (self.op, self.function)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ran += report.when == "call"
        self.noticed += report.failed


def mutants(places: list[str]) -> Iterator[Mutant]:
    from demitasse.backends.cpu.steps.elementwise import FUNCTIONS as OF_CPU
    from demitasse.backends.cupy.steps.elementwise import FUNCTIONS as OF_CUPY
    from demitasse.backends.numpy.steps.elementwise import FUNCTIONS as OF_NUMPY

    functions = {"numpy": OF_NUMPY, "cpu": OF_CPU, "host": OF_CUPY}
    for place in places:
        for op in PLACES[place]:
            names = sorted(functions[place]) if op is ops.Activation else [""]
            for name in names:
                for kind in KINDS:
                    if kind != "backward" or op not in WITHOUT_GRADIENT:
                        yield Mutant(place, op, name, kind)


def outcome(mutant: Mutant) -> tuple[int, int]:
    """Run the tests in a process of their own; return how many ran, and how many noticed."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        mutant.apply()
        with contextlib.redirect_stdout(io.StringIO()):
            pytest.main([*OPTIONS, "--hypothesis-profile=mutants", TESTS], plugins=[mutant])
        os.write(write, f"{mutant.ran} {mutant.noticed}".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as end:
        ran, noticed = map(int, end.read().split())
    os.waitpid(child, 0)
    return ran, noticed


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Break every lowering; count tests that notice.")
    parser.add_argument("places", nargs="*", metavar="{numpy,cpu,host}", help="default: all")
    parser.add_argument("--from", dest="first", type=int, default=1, help="number of the first")
    parser.add_argument("--count", type=int, help="how many; default: all that follow")
    parser.add_argument("--every", type=int, default=1, help="2: every second one, and so on")
    given = parser.parse_args()
    if unknown := set(given.places) - set(PLACES):
        parser.error(f"there is no {', '.join(sorted(unknown))}; known are {', '.join(PLACES)}")
    return given


def main() -> int:
    given = arguments()
    chosen = list(enumerate(mutants(given.places or list(PLACES)), 1))[given.first - 1 :]
    os.chdir(ROOT)
    with contextlib.redirect_stdout(io.StringIO()):  # what tests import is imported once, here
        pytest.main([*OPTIONS, "--collect-only", TESTS])
    from hypothesis import Phase, settings  # pytest wants to be the first to import it

    # the first example that fails is enough: nobody reads the smallest
    first = [Phase.explicit, Phase.generate]
    settings.register_profile("mutants", settings.get_profile("default"), phases=first)
    unnoticed = 0
    for number, mutant in chosen[:: given.every][: given.count]:
        ran, noticed = outcome(mutant)
        unnoticed += not noticed
        end = "" if noticed else "UNNOTICED"
        print(f"{number:3} {mutant}: {noticed} of {ran} tests", end, flush=True)
    print(f"{unnoticed} went unnoticed")
    return min(unnoticed, 1)


if __name__ == "__main__":
    sys.exit(main())

"""Turns: every engine once in each round, the same case for all of them."""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from peers.busy import loops
from peers.cases import Case
from peers.digest import Apart, apart
from peers.engines import PEAK, find
from peers.neighbours import LIMIT
from peers.process import EngineError, Process, RegisterTile, ask

__all__ = ["Options", "Row", "measure"]

REST = 0.15
"""Seconds between turns, in which threads that wait in a loop for more work go to sleep."""

LEAST_ROUNDS = 3

LONGER = 4
"""How much longer than planned a turn may become beside others."""

WARM = 3
"""Steps until everything has its place in memory."""

LEAST_MEMORY = 2 << 30
"""Bytes that must be free before one more engine is started."""


@dataclass(frozen=True)
class Options:
    """How thoroughly to measure.

    Attributes:
        rounds: Most rounds of a case.
        turn: Seconds of one engine's turn; at least one pass is made.
        threads: Of every engine.
        patience: How often a turn is repeated when others disturbed it.
        loops: Busy loops beside which each round is repeated; 0 for none.
        tell: Called with each line of progress.
    """

    rounds: int
    turn: float
    threads: int
    patience: int
    loops: int
    tell: Callable[[str], None]


@dataclass
class Row:
    """What one engine did in one case.

    Attributes:
        engine: Its name.
        medians: Of each round, in seconds.
        others: Share of one core that other processes used in each round.
        beside: Of each round beside busy loops, in seconds.
        error: Why there is nothing, or "".
        apart: How far its results are from the right ones; None where they were not compared.
        memory: Peaks in MiB: ``loading`` (making the net), ``peak`` (during a pass or step after
            the first ones).
        faults: Page faults of a pass.
        speeds: GFLOP/s and GB/s of each round, of the engine that measures the peak.
        about: Versions and settings.
    """

    engine: str
    medians: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    error: str = ""
    apart: Apart | None = None
    memory: dict[str, float] = field(default_factory=dict)
    faults: float = 0.0
    speeds: list[tuple[float, float]] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def time(self) -> float | None:
        """Median of the rounds' medians in seconds."""
        return statistics.median(self.medians) if self.medians else None

    @property
    def disturbed(self) -> int:
        """How many rounds others disturbed in spite of all repetitions."""
        return sum(others > LIMIT for others in self.others)

    @property
    def agrees(self) -> bool:
        """Whether its results are the right ones."""
        return self.apart is not None and self.apart.agrees


@dataclass
class _Running:
    process: Process
    row: Row
    repeats: int = 1
    warm: int = 0


def measure(
    case: Case, engines: Sequence[str], options: Options, until: float
) -> tuple[dict[str, Any], list[Row]]:
    """Measure one case on several engines.

    Args:
        case: The case.
        engines: Their names.
        options: How thoroughly.
        until: When to begin no more rounds, on ``time.monotonic``'s clock.

    Returns:
        What is known of the case, and a row for each engine that can do it.
    """
    able = [name for name in engines if find(name).trains or not case.train]
    with tempfile.TemporaryDirectory(prefix="demitasse_peers_") as place, ExitStack() as stack:
        folder = Path(place)
        try:
            ask("peers.prepare", case, case.scale, folder, threads=options.threads)
        except EngineError as error:
            return {"error": str(error)}, []
        rows, running = [], []
        for name in able:
            row = Row(name)
            rows.append(row)
            started = _start(row, case, folder, options)
            if started:
                running.append(started)
                stack.callback(started.process.close)
        _rounds(running, options, until)
        for one in running:
            with _failing(one, options):
                one.row.memory = _memory(one, case, folder, options)
        return json.loads((folder / "about.json").read_text()), rows


def _start(row: Row, case: Case, folder: Path, options: Options) -> _Running | None:
    """Start an engine, check its results, find out how long a pass takes."""
    if psutil.virtual_memory().available < LEAST_MEMORY:
        row.error = "not enough memory left to start it beside the others"
        return None
    begin = time.monotonic()
    process = None
    try:
        process = Process(row.engine, case, folder, options.threads)
        row.about = process.about
        results = process.check()
        if row.engine != PEAK:
            with np.load(results) as got, np.load(folder / "right.npz") as right:
                row.apart = apart(got, right)
        results.unlink()
        first = process.turn(1, 1, 0).times[0]
        repeats = max(1, round(options.turn / first))
        started = _Running(process, row, repeats, 1 if first < options.turn else 0)
    except EngineError as error:
        row.error = str(error)
        options.tell(f"  {row.engine}: {row.error}")
        return None
    off = "" if row.apart is None else f", off by {row.apart}"
    options.tell(
        f"  {row.engine}: ready in {time.monotonic() - begin:.1f} s, {first * 1e3:.2f} ms{off}"
    )
    return started


def _rounds(running: list[_Running], options: Options, until: float) -> None:
    for number in range(options.rounds):
        if number >= LEAST_ROUNDS and time.monotonic() > until:
            break
        able = [one for one in running if not one.row.error]
        shift = number % len(able) if able else 0
        able = able[shift:] + able[:shift]
        for one in able:
            with _failing(one, options):
                turn, row = _undisturbed(one, options), one.row
                row.medians.append(statistics.median(turn.times))
                row.others.append(turn.others)
                row.faults = turn.faults
                row.speeds += turn.speeds
        if options.loops:
            _beside([one for one in able if not one.row.error], options)


def _memory(one: _Running, case: Case, folder: Path, options: Options) -> dict[str, float]:
    """Return peaks of memory; see ``Row``.

    It is another process that passes are made in, by kernels that are kept by now: to make them,
    to compare results, to copy gradients and to repeat steps takes memory of its own.
    """
    if one.row.error:
        return {}
    one.process.close()
    again = Process(one.row.engine, case, folder, options.threads)
    try:
        again.turn(1, WARM, 0)
        again.memory(forget=True)
        again.turn(1, 1, 0)
        return again.memory(forget=False)
    finally:
        again.close()


def _beside(running: list[_Running], options: Options) -> None:
    with loops(options.loops):
        for one in running:
            with _failing(one, options):
                times = one.process.turn(one.repeats, 0, LONGER * options.turn).times
                one.row.beside.append(statistics.median(times))


@contextmanager
def _failing(one: _Running, options: Options) -> Iterator[None]:
    """Note why an engine can do no more."""
    try:
        yield
    except EngineError as error:
        one.row.error = str(error)
        options.tell(f"  {one.row.engine}: {error}")


def _undisturbed(one: _Running, options: Options) -> RegisterTile:
    """Give an engine its turn until others leave it alone; at last take the quietest."""
    best: RegisterTile | None = None
    for attempt in range(options.patience + 1):
        time.sleep(REST * (1 + attempt))
        turn = one.process.turn(one.repeats, one.warm, LONGER * options.turn)
        if best is None or turn.others < best.others:
            best = turn
        if best.others <= LIMIT:
            break
    return best

"""From a new process to its first result: with empty caches, and with filled ones."""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peers.cases import Case
from peers.process import EngineError, ask
from peers.tables import number, table

__all__ = ["Start", "measure_starts", "start_table"]

CACHES = ("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR")
"""Variables that name the folders in which engines keep what they have compiled."""


@dataclass
class Start:
    """How one engine starts with one case.

    Attributes:
        case: The case.
        engine: Its name.
        empty: Seconds of each round from the process's start to its result, with empty caches.
        filled: The same once more, with the caches that this has filled.
        peak: Largest resident memory of the latter in MiB, the last round's.
        error: Why there is nothing, or "".
    """

    case: str
    engine: str
    empty: list[float] = field(default_factory=list)
    filled: list[float] = field(default_factory=list)
    peak: float = 0.0
    error: str = ""


def measure_starts(
    case: Case, engines: Sequence[str], rounds: int, threads: int, tell: Callable[[str], None]
) -> list[Start]:
    """Start every engine twice in each round; see ``Start``."""
    starts = [Start(str(case), engine) for engine in engines]
    with tempfile.TemporaryDirectory(prefix="demitasse_start_") as place:
        folder = Path(place)
        ask("peers.prepare", case, case.scale, folder, threads=threads)
        for _ in range(rounds):
            for one in starts:
                if not one.error:
                    _round(one, case, folder, threads, tell)
    return starts


def _round(one: Start, case: Case, folder: Path, threads: int, tell: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="demitasse_cache_") as cache:
        caches = dict.fromkeys(CACHES, cache)
        try:
            for times in (one.empty, one.filled):
                begin = time.time()
                arguments = (one.engine, case, case.scale, folder, threads)
                said = json.loads(ask("peers.first", *arguments, threads=threads, more=caches))
                times.append(said["at"] - begin)
                one.peak = said["peak"]
        except EngineError as error:
            one.error = str(error)
    tell(f"  {one.engine}: {one.error or f'{one.empty[-1]:.2f}, then {one.filled[-1]:.2f} s'}")


def start_table(starts: Sequence[Start]) -> str:
    """Return a table: seconds with empty caches, with filled ones, and the memory."""
    engines = list(dict.fromkeys(one.engine for one in starts))
    lines = []
    for case in dict.fromkeys(one.case for one in starts):
        found = {one.engine: one for one in starts if one.case == case}
        lines.append([case, *(_cell(found.get(engine)) for engine in engines)])
    return table(["case", *engines], lines)


def _cell(one: Start | None) -> str:
    if one is None or one.error or not one.filled:
        return "failed" if one else "-"
    empty, filled = (statistics.median(times) for times in (one.empty, one.filled))
    return f"{empty:.2f}, {filled:.2f} s, {number(one.peak, '{:.0f}')} MiB"

"""Give every reader a great many damaged files: ``python tests/fuzz/run.py --count 1000000``.

Each reader runs in a process of its own, under limits. For each it is counted how many files were
read, how many were refused with which of our exceptions, and how many did anything else: another
exception, a hang, a crash, memory beyond what the file is worth, another file opened or written, a
message too long or with control characters, or something changed by a failure. Exits with 1 if
there were any of those.

``--only NAME --first I --count 1`` repeats one file; ``--only "random nets"``, ``--only "random
solvers"`` and ``--only "wrong layers"`` run what is made at random instead. ``--part 0 2`` and
``--part 1 2`` share the readers out to two processes.
"""

import argparse
import json
import logging
import mmap
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import tracemalloc
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from mutations import damaged_file, damaged_in_order
from random_nets import nets_readers
from reader import Reader
from readers import readers
from watch import Watch
from wrong_layers import wrong_layers_reader

from demitasse.errors import DemitasseError

SECONDS = 10  # of processor time that one file may take
ROOM = 1 << 30  # bytes of address space beyond what the process begins with
MEASURED = 100  # one file in so many has its memory traced
MEMORY, GROWTH = 96 << 20, 1100  # bytes one file may take, and so many more for each of its bytes
LONGEST = 16_000  # characters of a message
NETS = ("random nets", "random solvers", "wrong layers")


class Hang(BaseException):
    """A file takes too long."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="files in all")
    parser.add_argument("--least", type=int, default=1, help="files for each reader at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help=f"one reader by its name, or {' or '.join(NETS)}")
    part = "a part of the readers, to run several beside one another"
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("I", "OF"), help=part)
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--json", type=Path, help="write the counts here")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    results = {}
    with tempfile.TemporaryDirectory(dir=quick_folder()) as folder:
        made = [*nets_readers(), wrong_layers_reader()]
        known = made if options.only in NETS else readers(Path(folder))
        others = [file for reader in known for file in reader.files]
        share = options.count / sum(reader.cost**-0.5 for reader in known)
        part, parts = options.part
        mine = sorted(known, key=lambda reader: reader.cost)[part::parts]
        for reader in [r for r in known if r.name == options.only] if options.only else mine:
            # the quicker a reader, the more files it gets
            count = max(options.least, round(share * reader.cost**-0.5))
            count = options.count if options.only else count
            batch = Batch(reader, options.seed, others, Path(folder))
            results[reader.name] = supervise(batch, options.first, count)
            sys.stdout.write(line_of(reader.name, results[reader.name]) + "\n")
            sys.stdout.flush()
    sys.stdout.write(total_of(results) + "\n")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return int(any(r["foreign"] for r in results.values()))


@dataclass(frozen=True)
class Batch:
    """Damaged files of one reader.

    Attributes:
        reader: Who reads them.
        seed: What they depend on, besides their numbers.
        others: What parts may be taken from.
        folder: Where the reader may read files.
    """

    reader: Reader
    seed: int
    others: list[bytes]
    folder: Path

    def file(self, number: int) -> bytes:
        """The file of a number: the first are the sound ones, of the others a half is drawn."""
        reader, sound = self.reader, len(self.reader.files)
        if number < sound:
            return reader.files[number]
        if number % 2 and not reader.draw:  # another seed begins elsewhere
            return damaged_in_order(reader.files, number // 2 + 1_000_003 * self.seed)
        rng = random.Random(f"{self.seed}/{reader.name}/{number}")
        return damaged_file(reader, rng, self.others)


def line_of(name: str, result: dict) -> str:
    counts = ", ".join(f"{k} {v}" for k, v in sorted(result["counts"].items()))
    memory = f"{result['peak'] / 2**20:.1f} MiB for a file of {result['peak_size']} bytes"
    speed = f"{result['files'] / max(result['seconds'], 1e-9):.0f}/s"
    bad = "".join(f"\n    !! {what}" for what in result["foreign"])
    return f"{name}: {result['files']} files, {speed}; {counts}; at most {memory}{bad}"


def total_of(results: dict[str, dict]) -> str:
    counts: Counter[str] = Counter()
    for result in results.values():
        counts.update(result["counts"])
    files = sum(r["files"] for r in results.values())
    rss = max(r["rss"] for r in results.values())
    listed = ", ".join(f"{k} {v}" for k, v in counts.most_common())
    return f"in all: {files} files; {listed}; largest process {rss / 2**20:.0f} MiB"


# -- one process for each reader ---------------------------------------------------------------


def supervise(batch: Batch, first: int, count: int) -> dict:
    """Run a reader to the end, in a new process after each crash or hang."""
    result = {"files": 0, "counts": Counter(), "foreign": [], "peak": 0, "peak_size": 0, "rss": 0}
    began, last = time.monotonic(), first + count
    with tempfile.TemporaryDirectory(dir=quick_folder()) as name, mmap.mmap(-1, 8) as place:
        report, stderr = Path(name) / "report", Path(name) / "stderr"
        while first < last:
            place[:8] = first.to_bytes(8, "little")
            report.unlink(missing_ok=True)
            process = os.fork()
            if not process:
                run_and_exit(batch, first, last, place, report, stderr)
            status, reached = wait(process, place)
            if report.exists():
                merge(result, json.loads(report.read_text()))
                first = last
            else:
                how = "hangs" if status == -signal.SIGKILL else "crashes"
                result["counts"][f"!{how}"] += 1
                result["files"] += reached - first + 1
                told = stderr.read_text(errors="replace")[-500:]
                result["foreign"].append(f"file {reached} {how} ({status}): {told}")
                first = reached + 1
    result["seconds"] = time.monotonic() - began
    return result


def quick_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def wait(process: int, place: mmap.mmap) -> tuple[int, int]:
    """Wait until a process ends; end it when it makes no progress.

    Returns:
        How it ended, as an exit status or minus a signal, and its last file.
    """
    reached, since = -1, time.monotonic()
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        now = int.from_bytes(place[:8], "little")
        if ended:
            return os.waitstatus_to_exitcode(status), now
        if now != reached:
            reached, since = now, time.monotonic()
        elif time.monotonic() - since > 12 * SECONDS:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


def run_and_exit(
    batch: Batch, first: int, last: int, place: mmap.mmap, report: Path, stderr: Path
) -> NoReturn:
    """Be the process that reads the files."""
    status = 1
    try:
        with stderr.open("wb") as file:
            os.dup2(file.fileno(), 2)
        report.write_text(json.dumps(work(batch, first, last, place)))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def merge(result: dict, part: dict) -> None:
    result["files"] += part["files"]
    result["counts"].update(part["counts"])
    result["foreign"] += part["foreign"]
    result["rss"] = max(result["rss"], part["rss"])
    if part["peak"] > result["peak"]:
        result["peak"], result["peak_size"] = part["peak"], part["peak_size"]


# -- in that process ---------------------------------------------------------------------------


def work(batch: Batch, first: int, last: int, place: mmap.mmap) -> dict:
    """Read files under limits; return what came of them."""
    reader = batch.reader
    watch = Watch(batch.folder)
    for file in reader.files:  # what is imported and compiled once
        for content in (file, file[:-1]):
            with suppress(Exception):
                reader.call(content)
    signal.signal(signal.SIGPROF, on_alarm)  # what only waits, the supervisor ends
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    counts: Counter[str] = Counter()
    foreign: dict[str, str] = {}
    peak, peak_size = 0, 0
    for number in range(first, last):
        place[:8] = number.to_bytes(8, "little")
        content = batch.file(number)
        traced = number % MEASURED == 0
        if traced:
            tracemalloc.start()
        counts[outcome(reader, content, number, foreign, watch)] += 1
        if traced:
            used = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            if used > MEMORY + GROWTH * len(content):
                counts["!memory"] += 1
                what = f"file {number}: {used} bytes for a file of {len(content)}"
                foreign.setdefault("memory", what)
            if used > peak:
                peak, peak_size = used, len(content)
    return {
        "files": last - first,
        "counts": counts,
        "foreign": list(foreign.values()),
        "peak": peak,
        "peak_size": peak_size,
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def outcome(reader, content: bytes, number: int, foreign: dict[str, str], watch: Watch) -> str:
    """Read a file; return what came of it. ``foreign`` gets one example of each fault."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    result = "read"
    try:
        with watch.watching(opens=reader.opens):
            reader.call(content)
    except DemitasseError as error:
        result = type(error).__name__
        fault = fault_of_message(str(error))
        if fault:
            foreign.setdefault(fault, f"file {number}: {fault}: {str(error)[:200]!r}")
            return "!message"
    except reader.allowed as error:
        result = type(error).__name__
    except Hang:
        where = traceback.format_exc(limit=-6)
        foreign.setdefault("hangs", f"file {number} hangs\n{where}")
        return "!hangs"
    except BaseException as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "demitasse" in f.filename]
        frame = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        what = f"file {number}: {type(error).__name__} at {place}: {str(error)[:200]}"
        foreign.setdefault(f"{type(error).__name__} {place}", what)
        return f"!{type(error).__name__}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if watch.seen:
        foreign.setdefault(watch.seen[0], f"file {number}: {watch.seen[0]}")
        return "!seen"
    return result


def fault_of_message(text: str) -> str:
    """Say what is wrong with the text of an error."""
    text.encode("utf-8", "surrogateescape")
    if len(text) > LONGEST:
        return f"a message of {len(text)} characters"
    wrong = {c for c in text if c not in "\n\t" and (c < " " or "\x7f" <= c < "\xa0")}
    return f"control characters in a message: {wrong}" if wrong else ""


def on_alarm(*_unused: object) -> None:
    raise Hang


if __name__ == "__main__":
    sys.exit(main())

"""Give every reader a great many damaged files: ``python tests/fuzz/run.py --count 1000000``.

Each reader runs in a process of its own, under limits. For each it is counted how many files were
read, how many were refused with which of our exceptions, and how many did anything else: another
exception, a hang, a crash, or something changed by a failure. Exits with 1 if there were any of
those. ``--only NAME --first I --count 1`` repeats one file.
"""

import argparse
import json
import logging
import mmap
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import tracemalloc
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from mutations import damaged, random_changes
from readers import readers

from demitasse.errors import DemitasseError

SECONDS = 10  # that one file may take
ROOM = 1 << 30  # bytes of address space beyond what the process begins with
MEASURED = 100  # one file in so many has its memory traced


class Hang(BaseException):
    """A file takes too long."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="files in all")
    parser.add_argument("--seconds", type=float, help="share out this time instead of files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one reader by its name")
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--json", type=Path, help="write the counts here")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return work(options)
    with tempfile.TemporaryDirectory() as folder:
        known = {r.name: r.cost for r in readers(Path(folder))}
    names = [options.only] if options.only else list(known)
    results = {}
    for name in names:
        count = options.count
        if not options.only:  # the quicker a reader, the more files it gets
            share = sum(known[name] ** 0.5 / known[other] ** 0.5 for other in names)
            count = max(1, round(options.count / share))
        results[name] = supervise(name, options.first, count, options.seed)
        sys.stdout.write(line_of(name, results[name]) + "\n")
        sys.stdout.flush()
    sys.stdout.write(total_of(results) + "\n")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return int(any(r["foreign"] for r in results.values()))


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


def supervise(name: str, first: int, count: int, seed: int) -> dict:
    """Run a reader to the end, in a new process after each crash or hang."""
    result = {"files": 0, "counts": Counter(), "foreign": [], "peak": 0, "peak_size": 0, "rss": 0}
    began, last = time.monotonic(), first + count
    with tempfile.TemporaryDirectory(dir=quick_folder()) as folder:
        place = Path(folder) / "number"
        while first < last:
            place.write_bytes(first.to_bytes(8, "little"))
            report = Path(folder) / "report"
            report.unlink(missing_ok=True)
            command = [
                sys.executable, __file__, "--work", folder, "--only", name,
                "--first", str(first), "--count", str(last - first), "--seed", str(seed),
            ]  # fmt: skip
            with (Path(folder) / "stderr").open("wb") as stderr:
                process = subprocess.Popen(command, stderr=stderr)
                reached = wait(process, place)
            if report.exists():
                part = json.loads(report.read_text())
                merge(result, part)
                first = part["next"]
            else:
                how = "hangs" if process.returncode == -signal.SIGKILL else "crashes"
                result["counts"][f"!{how}"] += 1
                result["files"] += reached - first + 1
                told = (Path(folder) / "stderr").read_text(errors="replace")[-500:]
                result["foreign"].append(f"file {reached} {how} ({process.returncode}): {told}")
                first = reached + 1
    result["seconds"] = time.monotonic() - began
    return result


def quick_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def wait(process: subprocess.Popen, place: Path) -> int:
    """Wait until a process ends; end it when it makes no progress. Returns its last file."""
    reached, since = -1, time.monotonic()
    while True:
        try:
            process.wait(1)
            return int.from_bytes(place.read_bytes(), "little")
        except subprocess.TimeoutExpired:
            now = int.from_bytes(place.read_bytes(), "little")
            if now != reached:
                reached, since = now, time.monotonic()
            elif time.monotonic() - since > 6 * SECONDS:
                process.kill()


def merge(result: dict, part: dict) -> None:
    result["files"] += part["files"]
    result["counts"].update(part["counts"])
    result["foreign"] += part["foreign"]
    result["rss"] = max(result["rss"], part["rss"])
    if part["peak"] > result["peak"]:
        result["peak"], result["peak_size"] = part["peak"], part["peak_size"]


# -- in that process ---------------------------------------------------------------------------


def work(options: argparse.Namespace) -> int:
    folder = Path(options.work)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    files = folder / f"files{options.first}"
    files.mkdir()
    all_readers = readers(files)
    [reader] = [r for r in all_readers if r.name == options.only]
    others = [file for r in all_readers for file in r.files]
    signal.signal(signal.SIGALRM, on_alarm)
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    counts: Counter[str] = Counter()
    foreign: dict[str, str] = {}
    peak, peak_size, done = 0, 0, options.first
    with (folder / "number").open("r+b") as handle, mmap.mmap(handle.fileno(), 8) as shared:
        while done < options.first + options.count:
            shared[:8] = done.to_bytes(8, "little")
            content = file_of(reader, options.seed, done, others)
            traced = done % MEASURED == 0
            if traced:
                tracemalloc.start()
            counts[outcome(reader, content, done, foreign)] += 1
            if traced:
                used = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                if used > peak:
                    peak, peak_size = used, len(content)
            done += 1
    report = {
        "files": done - options.first,
        "next": done,
        "counts": counts,
        "foreign": list(foreign.values()),
        "peak": peak,
        "peak_size": peak_size,
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    (folder / "report").write_text(json.dumps(report))
    return 0


def file_of(reader, seed: int, number: int, others: list[bytes]) -> bytes:
    """The file of a number; the first are the sound ones."""
    if number < len(reader.files):
        return reader.files[number]
    rng = random.Random(f"{seed}/{reader.name}/{number}")
    return damaged(rng.choice(reader.files), random_changes(rng), others, reader.form)


def outcome(reader, content: bytes, number: int, foreign: dict[str, str]) -> str:
    """Read a file; return what came of it. ``foreign`` gets one example of each fault."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        reader.call(content)
    except DemitasseError as error:
        str(error).encode("utf-8", "surrogateescape")
        return type(error).__name__
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
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "read"


def on_alarm(*_unused: object) -> None:
    raise Hang


if __name__ == "__main__":
    sys.exit(main())

"""Train for long from every source of data, and see that nothing grows: ``nox -s soak``.

    python tests/soak/run.py --minutes 20

Each source and device has a process of its own, which trains, tests, writes snapshots, goes on from
them in new solvers, and moves its net between devices. Told for each: the iterations; the slope of
a line through the resident memory after the first fifth, in MiB per 100,000 iterations; open files
and threads. Exits with 1 where files or threads grew, or a process failed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from soaking import DEVICES, SOURCES, Soak, make_data


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20, help="in all")
    parser.add_argument("--source", action="append", choices=SOURCES, help="only these")
    parser.add_argument("--device", action="append", help=f"default: {', '.join(DEVICES)}")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return work(Path(options.work), options.source[0], options.device[0], options.minutes)
    kinds = [(s, d) for s in options.source or SOURCES for d in options.device or DEVICES]
    found = []
    for source, device in kinds:
        found.append(started(source, device, options.minutes / len(kinds)))
        say(row(found[-1]))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return int(any(not one["flat"] for one in found))


def started(source: str, device: str, minutes: float) -> dict[str, object]:
    """Run one source in a process of its own, and return its figures."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--work", folder, "--source", source]
        command += ["--device", device, "--minutes", str(minutes)]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode:
        return {"source": source, "device": device, "flat": False, "failed": run.returncode}
    figures: dict[str, object] = json.loads(run.stdout.splitlines()[-1])
    return figures


def work(folder: Path, source: str, device: str, minutes: float) -> int:
    """Train in this process for some minutes, and say the figures."""
    make_data(folder)
    until = time.monotonic() + 60 * minutes
    with Soak(folder, source, device) as soak:
        for _ in rounds(until):
            soak.round()
    say(json.dumps(soak.figures()))
    return 0


def rounds(until: float) -> Iterator[None]:
    while time.monotonic() < until:
        yield


def row(figures: dict[str, object]) -> str:
    return "  ".join(f"{name} {value}" for name, value in figures.items())


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

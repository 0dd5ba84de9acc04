"""How long it takes to save and to load a large caffemodel and solver state, beside a plain copy.

``python bench/weights_files.py [MB]`` prints a table: the best and the median of several rounds, in
seconds, relative to copying a file of that size and flushing it to the disk, and the memory that
was taken at most, relative to the size of the file.
"""

import gc
import os
import resource
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from demitasse import Solver, load_weights
from demitasse.io.proto import SolverParameter, parse_text
from demitasse.training import read_state

ROUNDS = 5
ROWS = 4096


def solver_of(megabytes: float, folder: Path) -> Solver:
    """Make a solver whose net has parameters of so many MB."""
    columns = round(megabytes * 1e6 / 4 / ROWS / 2)
    text = f"""
    base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 snapshot_prefix: "{folder}/s"
    net_param {{
      layer {{ name: "x" type: "Input" top: "x"
        input_param {{ shape {{ dim: 1 dim: {columns} }} }} }}
      layer {{ name: "a" type: "InnerProduct" bottom: "x" top: "a"
        inner_product_param {{ num_output: {ROWS} }} }}
      layer {{ name: "b" type: "InnerProduct" bottom: "a" top: "b"
        inner_product_param {{ num_output: {columns} }} }} }}
    """
    solver = Solver(parse_text(text, SolverParameter), device="numpy")
    for blob in solver.net.learnable_params:
        blob.mutable_cpu_data()[...] = 0.5
    return solver


def copy(source: Path, target: Path) -> None:
    """Copy a file and flush it to the disk, as atomic writing does."""
    with source.open("rb") as read, target.open("wb") as write:
        shutil.copyfileobj(read, write, 1 << 20)
        write.flush()
        os.fsync(write.fileno())


class Peak:
    """The most memory this process has while something runs, beyond what it had before."""

    def __enter__(self) -> "Peak":
        gc.collect()
        self.least = self.most = resident()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self.most = max(self.most, resident())


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measured(work: Callable[[], object]) -> tuple[list[float], int]:
    times, most = [], 0
    for _ in range(ROUNDS):
        with Peak() as peak:
            began = time.perf_counter()
            kept = work()
            times.append(time.perf_counter() - began)
        most = max(most, peak.most - peak.least)
        del kept
    return times, most


def main() -> None:
    megabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 240.0
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as name:
        folder = Path(name)
        solver = solver_of(megabytes, folder)
        net, model, other = solver.net, folder / "m.caffemodel", folder / "copy"
        net.save(model)
        size = model.stat().st_size
        _, state = solver.snapshot()
        works: dict[str, Callable[[], object]] = {
            "copy and flush": lambda: copy(model, other),
            "read": model.read_bytes,
            "save a caffemodel": lambda: net.save(other),
            "load it into the net": lambda: net.load(model),
            "load it without a net": lambda: load_weights(model),
            "snapshot (both files)": solver.snapshot,
            "read a solver state": lambda: read_state(state),
            "restore": lambda: solver.restore(state),
        }
        results = {what: measured(work) for what, work in works.items()}
    base = min(results["copy and flush"][0])
    print(f"caffemodel of {size / 1e6:.0f} MB\n")
    print("| | best, s | median, s | best / copy | memory / file |")
    print("| --- | --: | --: | --: | --: |")
    for what, (times, most) in results.items():
        best, median = min(times), statistics.median(times)
        print(f"| {what} | {best:.3f} | {median:.3f} | {best / base:.2f} | {most / size:.2f} |")


if __name__ == "__main__":
    main()

"""How long gradients take to be added up by several processes: our ways, and PyTorch's gloo.

    python bench/compare_allreduce.py [--processes 2,4] [--rounds 5] [--json FILE]

Every process has as many float32 as a net has parameters. A round starts the processes of each
library anew, one library after the other, so that what else the machine does meets both; a time is
the median over the rounds, of the median of a round. What is measured ends when the slowest process
has the sum. Needs mpi4py with an MPI, and PyTorch (`--torch PYTHON`: of another environment).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

SIZES = {"LeNet": 431_080, "CaffeNet": 60_965_224}
"""Net -> its parameters."""

ROOT = Path(__file__).resolve().parents[1]


def repeated(work: Callable[[], None], meet: Callable[[], None], count: int) -> float:
    """Return the median time of some work that all processes begin together."""
    times = []
    for _ in range(count + 1):
        meet()
        start = time.perf_counter()
        work()
        meet()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])  # the first makes connections


def ours() -> dict[str, float]:
    """Return the times of our ways, in a process that mpirun has started."""
    from demitasse.training.distributed.allreduce import deterministic_mean, fast_mean, fp16_mean
    from demitasse.training.distributed.group import Shards
    from demitasse.training.distributed.mpi import Mpi

    mpi = Mpi()
    shards = Shards(mpi.size, mpi.rank, mpi.size)
    found = {}

    def meet() -> None:
        mpi.allgather_bytes(b"")

    for net, count in SIZES.items():
        values = np.random.default_rng(mpi.rank).normal(size=count).astype(np.float32)
        for name, mean in (("exact", deterministic_mean), ("fast", fast_mean), ("half", fp16_mean)):

            def work(mean: Callable[..., None] = mean, values: np.ndarray = values) -> None:
                mean(mpi, shards, [values])

            found[f"{net} {name}"] = repeated(work, meet, times_of(count))
    return found if mpi.rank == 0 else {}


def gloo(rank: int, size: int, port: int) -> dict[str, float]:
    """Return the times of gloo."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
    found = {}
    for net, count in SIZES.items():
        values = torch.randn(count)

        def work(values: torch.Tensor = values) -> None:
            dist.all_reduce(values)
            values /= size

        found[f"{net} gloo"] = repeated(work, dist.barrier, times_of(count))
    dist.destroy_process_group()
    return found if rank == 0 else {}


def times_of(count: int) -> int:
    """Return how often an array of so many values is added up in a round."""
    return 7 if count > 1 << 22 else 41


def run_ours(size: int) -> dict[str, float]:
    """Start our processes; return their times."""
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if mpirun is None:
        raise SystemExit("mpirun is not there: pip install 'demitasse[mpi]'")
    command = [mpirun, "--oversubscribe", "--bind-to", "none", "-n", str(size)]
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment = {**os.environ, **allowed, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, sys.executable, __file__, "--part", "ours"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return times_in(done.stdout)


def run_gloo(size: int, python: str) -> dict[str, float]:
    """Start PyTorch's processes; return their times."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [
        subprocess.Popen(
            [python, __file__, "--part", "gloo", "--rank", str(rank), str(size), str(port)],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    printed = [child.communicate()[0] for child in children]
    return times_in(printed[0])


def times_in(printed: str) -> dict[str, float]:
    """Return what the first process has printed."""
    [line] = [line for line in printed.splitlines() if line.startswith("{")]
    found: dict[str, float] = json.loads(line)
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", default="2,4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--part", choices=["ours", "gloo"], help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        found = ours() if given.part == "ours" else gloo(*given.rank)
        if found:
            print(json.dumps(found), flush=True)
        return
    table: dict[str, dict[str, float]] = {}
    for size in map(int, given.processes.split(",")):
        rounds: list[dict[str, float]] = []
        for _ in range(given.rounds):
            rounds.append({**run_ours(size), **run_gloo(size, given.torch)})
        table[str(size)] = {
            name: statistics.median(one[name] for one in rounds) for name in rounds[0]
        }
    ways = ("exact", "fast", "half", "gloo")
    print(f"{'milliseconds':24}" + "".join(f"{way:>10}" for way in ways))
    for size, times in table.items():
        for net in SIZES:
            row = "".join(f"{1e3 * times[f'{net} {way}']:10.2f}" for way in ways)
            print(f"{f'{net}, {size} processes':24}{row}")
    if given.json:
        given.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()

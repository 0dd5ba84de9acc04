"""Train from the newest state in a folder until killed: ``train_until_killed.py FOLDER DEVICE``.

Print the number of each iteration at its start, and ``w`` at the start of a file of a snapshot.
"""

import logging
import sys
from pathlib import Path

import numpy as np

from demitasse import Solver


def latest_snapshot(folder: Path) -> Path | None:
    states = list(folder.glob("s_*.solverstate*"))
    number = {state: int(state.name.split("_iter_")[1].split(".")[0]) for state in states}
    return max(states, key=number.__getitem__, default=None)


class Writes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("Snapshotting"):
            say("w")


def give_rows(solver: Solver) -> None:
    """Give MemoryData layers their arrays, the same in every process."""
    rng = np.random.default_rng(1)
    for net in (solver.net, *solver.test_nets):
        for layer in net.layers:
            if layer.type == "MemoryData":
                layer.reset(rng.random((20, 1, 5, 6)), rng.integers(0, 3, 20))


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(folder: Path, device: str) -> None:
    solver = Solver(folder / "solver.prototxt", device=device, keep_last=2, keep_best="loss")
    give_rows(solver)
    state = latest_snapshot(Path())
    if state is not None:
        solver.restore(state)
    solver.on_start.append(lambda: say(str(solver.iter)))
    log = logging.getLogger("demitasse.training.checkpoint.snapshot")
    log.setLevel(logging.INFO)
    log.addHandler(Writes())
    solver.solve()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

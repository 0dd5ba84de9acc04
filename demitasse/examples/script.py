"""What the examples' scripts share: arguments, a folder to work in, training."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from demitasse.core.config import settings
from demitasse.io.proto import read_solver_params
from demitasse.training import Solver

__all__ = ["Arguments", "copy_prototxts", "main", "train"]


@dataclass(frozen=True)
class Arguments:
    """What an example is told.

    Attributes:
        out: Folder for data, prototxts and weights.
        data: Folder of real data; None makes or takes what needs no download.
        device: Where to run; None asks the configuration.
        iterations: Updates of each training; None takes what its solver says.
    """

    out: Path
    data: Path | None = None
    device: str | None = None
    iterations: int | None = None

    def with_iterations(self, iterations: int) -> Arguments:
        """Return these, with so many updates where none were asked for."""
        return self if self.iterations is not None else replace(self, iterations=iterations)


def main(run: Callable[[Arguments], Mapping[str, float]], about: str, name: str) -> None:
    """Run an example with the arguments of the command line and print what it reached."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs") / name, help="folder to work in")
    parser.add_argument("--data", type=Path, help="folder of real data (see the README beside)")
    parser.add_argument("--device", help="cpu, cuda:0, ...")
    parser.add_argument("--iterations", type=int, help="updates of each training")
    given = parser.parse_args()
    for what, value in run(Arguments(**vars(given))).items():
        print(f"{what}: {value:.4g}")


def copy_prototxts(source: Path, out: Path) -> None:
    """Copy the prototxts of an example to where it runs; what is there already is kept."""
    out.mkdir(parents=True, exist_ok=True)
    for file in source.glob("*.prototxt"):
        if not (out / file.name).exists():
            shutil.copy(file, out)


def train(
    file: Path, given: Arguments, *, weights: Path | None = None, resume: Path | None = None
) -> Solver:
    """Train as a solver's file says; snapshots land in its folder.

    Args:
        file: The solver's.
        given: Device, and how many updates.
        weights: A caffemodel to begin with, or None.
        resume: A solver state to go on from, or None.
    """
    param = read_solver_params(file)
    param.snapshot_prefix = str(file.parent / param.snapshot_prefix)
    if weights is not None:
        param.weights[:] = [str(weights)]
    # So small nets gain little from more threads, and on a busy machine they wait for them.
    with settings.override(threads=1):
        solver = Solver(param, device=given.device, base_dir=file.parent)
        if resume is not None:
            solver.restore(resume)
        if given.iterations is not None:
            solver.param.max_iter = solver.iter + given.iterations
        solver.solve()
    return solver

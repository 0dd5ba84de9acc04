"""Shared parts of the examples' scripts: arguments, working folder, training."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from demitasse.core.config import settings
from demitasse.io.proto import read_solver_params
from demitasse.training import Solver


@dataclass(frozen=True)
class Arguments:
    """Arguments of an example; see ``main``."""

    out: Path
    data: Path | None = None
    device: str | None = None
    iterations: int | None = None

    def with_iterations(self, iterations: int) -> Arguments:
        """Return the arguments, with a default number of updates."""
        return self if self.iterations is not None else replace(self, iterations=iterations)


def main(run: Callable[[Arguments], Mapping[str, float]], about: str, name: str) -> None:
    """Run an example with the arguments of the command line, and print its results."""
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
    """Copy the prototxts of an example to its working folder; keep existing files."""
    out.mkdir(parents=True, exist_ok=True)
    for file in source.glob("*.prototxt"):
        if not (out / file.name).exists():
            shutil.copy(file, out)


def train(
    file: Path, given: Arguments, *, weights: Path | None = None, resume: Path | None = None
) -> Solver:
    """Train with a solver file, from weights or a solver state; snapshots go to its folder."""
    param = read_solver_params(file)
    param.snapshot_prefix = str(file.parent / param.snapshot_prefix)
    if param.net:  # the current folder may be the example's own, with a net of the same name
        param.net = str(file.parent / param.net)
    if weights is not None:
        param.weights[:] = [str(weights)]
    # Small nets gain little from more threads, and wait for them on a busy machine.
    with settings.override(threads=1):
        solver = Solver(param, device=given.device, base_dir=file.parent)
        if resume is not None:
            solver.restore(resume)
        if given.iterations is not None:
            solver.param.max_iter = solver.iter + given.iterations
        solver.solve()
    return solver

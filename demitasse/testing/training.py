"""Train one net on several devices and say how far they have parted after each step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from demitasse.io.proto import NetParameter, SolverParameter
from demitasse.net import Net
from demitasse.testing.differences import Difference, gap
from demitasse.training import Solver

__all__ = ["TrainingStep", "compare_training"]


@dataclass(frozen=True)
class TrainingStep:
    """How far one device is from the first after a step.

    Attributes:
        iteration: How many steps have been taken.
        device: The device compared.
        loss: The loss there.
        expected: The loss on the first device.
        worst: The parameter that is furthest off, relative to its layer's largest values.
    """

    iteration: int
    device: str
    loss: float
    expected: float
    worst: Difference


def compare_training(
    source: str | os.PathLike[str] | NetParameter | SolverParameter,
    devices: Sequence[str],
    steps: int,
    *,
    prepare: Callable[[Net], None] | None = None,
    seed: int = 0,
) -> list[TrainingStep]:
    """Train on several devices from the same parameters, and compare after each step.

    Differences of rounding grow in training, so no limit is right for every net: ten steps tell a
    wrong gradient or update, which shows in the first, from rounding, which does not.

    Args:
        source: A net, which plain SGD trains with rate 0.01 and momentum 0.9; or the message of a
            solver.
        devices: At least two; the first is the reference.
        steps: How many.
        prepare: Called with each device's net before the first step, e.g. to fill inputs.
        seed: Of parameters, dropout and data.

    Returns:
        For each step, one for each device but the first.
    """
    names = [str(device) for device in devices]
    with ExitStack() as stack:
        solvers = [
            stack.enter_context(Solver(_solver(source), device=name, seed=seed)) for name in names
        ]
        first = solvers[0].net
        for solver in solvers:
            if prepare is not None:
                prepare(solver.net)
            for mine, theirs in zip(
                first.learnable_params, solver.net.learnable_params, strict=True
            ):
                theirs.copy_from(mine)
        found: list[TrainingStep] = []
        for iteration in range(1, steps + 1):
            for solver in solvers:
                solver.step(1)
            found += (_compared(iteration, name, other, solvers[0])
                      for name, other in zip(names[1:], solvers[1:], strict=True))  # fmt: skip
        return found


def _solver(source: str | os.PathLike[str] | NetParameter | SolverParameter) -> SolverParameter:
    """Return the solver's message: the one given, or one for a net."""
    if isinstance(source, SolverParameter):
        return source
    param = SolverParameter(
        base_lr=0.01, lr_policy="fixed", momentum=0.9, snapshot_after_train=False, display=0
    )
    if isinstance(source, NetParameter):
        param.net_param.CopyFrom(source)
    else:
        param.net = os.fspath(source)
    return param


def _compared(iteration: int, device: str, solver: Solver, first: Solver) -> TrainingStep:
    worst = max(_parameters(device, solver.net, first.net), key=lambda one: one.relative)
    return TrainingStep(iteration, device, solver.smoothed_loss, first.smoothed_loss, worst)


def _parameters(device: str, net: Net, first: Net) -> Iterator[Difference]:
    for layer, other in zip(net.layers, first.layers, strict=True):
        # a bias that begins with 0 and has no effect (before a BatchNorm) is rounding error alone
        largest = max((float(np.max(np.abs(b.cpu_data()), initial=0)) for b in other.blobs[:1]),
                      default=0.0)  # fmt: skip
        for index, (mine, theirs) in enumerate(zip(layer.blobs, other.blobs, strict=True)):
            apart = gap(mine.cpu_data(), theirs.cpu_data(), largest)
            yield Difference(layer.name, layer.type, f"parameter {index}", device, apart)

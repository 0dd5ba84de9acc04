"""An exception at any line of training: nothing is half done, or the solver says so.

``nox -s interrupts`` raises one at every line, for every type of solver; here it is a sample.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from interruptions import Interrupt, chosen, interrupted

from demitasse import Solver
from demitasse.data.databases.writing import write_database
from demitasse.errors import SnapshotError
from demitasse.proto import NetParameter, SolverParameter, parse_text
from demitasse.solvers import RULES, EarlyStopping

EVERY = os.environ.get("DEMITASSE_INTERRUPT_EVERYWHERE") == "1"

NET = """
layer { name: "data" type: "Data" top: "x" top: "y" transform_param { crop_size: 6 mirror: true }
        data_param { source: "FOLDER/db" backend: LMDB batch_size: 3 } }
layer { name: "noise" type: "DummyData" top: "noise" dummy_data_param {
        shape { dim: 3 dim: 1 dim: 6 dim: 6 } data_filler { type: "gaussian" } } }
layer { name: "sum" type: "Eltwise" bottom: "x" bottom: "noise" top: "sum" }
layer { name: "conv" type: "Convolution" bottom: "sum" top: "conv"
        convolution_param { num_output: 8 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
        pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "drop" type: "Dropout" bottom: "pool" top: "pool" }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" param { lr_mult: 1 }
        param { lr_mult: 2 decay_mult: 0 }
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "y" top: "loss" }
"""
SOLVER = """
base_lr: 0.01 lr_policy: "plateau" gamma: 0.5 plateau_winsize: 2 weight_decay: 0.01 iter_size: 2
clip_gradients: 0.5 average_loss: 3 test_iter: 2 test_interval: 2 random_seed: 3 display: 0
"""
BEFORE = 2
"""Iterations that are made before the interrupted one, where it is not the first."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("interrupted")
    images = np.random.default_rng(1).integers(0, 255, (7, 1, 8, 8)).astype(np.uint8)
    write_database(folder / "db", [(image, i % 3) for i, image in enumerate(images)])
    return folder


class Training:
    """Solvers of one sort, and what an undisturbed one comes to.

    Args:
        folder: Where their data is.
        kind: Their type.
        device: Where they run.
        before: Iterations they make before they are interrupted.
    """

    def __init__(self, folder: Path, kind: str, device: str, before: int) -> None:
        self.folder, self.before = folder, before
        self.param = parse_text(SOLVER, SolverParameter)
        self.param.type = kind
        if RULES[kind].takes_momentum:
            self.param.momentum = 0.9
        net = NET.replace("FOLDER", str(folder))
        self.param.net_param.CopyFrom(parse_text(net, NetParameter))
        self.device, self.refused, self.interrupted = device, 0, 0
        with self.made() as solver:
            _, self.state = solver.snapshot(folder / f"{kind}_{device.replace(':', '_')}_{before}")
            with Interrupt() as whole:
                solver.step(1)
            self.lines = whole.lines
            self.wanted = self.come_to(solver)

    def made(self) -> Solver:
        solver = Solver(
            self.param, device=self.device, early_stopping=EarlyStopping("loss", patience=100)
        )
        solver.step(self.before)
        return solver

    def come_to(self, solver: Solver) -> list[object]:
        """Train to a certain iteration, and return all that counts then."""
        solver.step(self.before + 3 - solver.iter)
        blobs = [blob.cpu_data().tobytes() for blob in solver.net.structure.params_list]
        history = [array.tobytes() for array in solver.history.arrays()]
        resume = solver._continuation.now()
        resume.ClearField("snapshot")
        return [solver.iter, solver.current_step, blobs, history, resume]

    def check(self, at: int, error: type[BaseException]) -> None:
        with self.made() as solver:
            with interrupted(at, error) as interrupt:
                solver.step(1)
            self.interrupted += interrupt.raised
            try:
                found = self.come_to(solver)
            except SnapshotError as refusal:
                self.refused += 1
                assert "cut short" in str(refusal)
                with pytest.raises(SnapshotError, match="cut short"):
                    solver.snapshot(self.folder / "torn")
                solver.restore(self.state)
                found = self.come_to(solver)

        file, line = self.lines[at - 1]
        assert found == self.wanted, f"{error.__name__} at {file}:{line}, the {at}th line"


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("before", [0, BEFORE], ids=["first", "later"])
@pytest.mark.parametrize("kind", RULES if EVERY else ["Adam"])
@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_an_iteration_that_is_cut_short_is_done_again_or_refused(
    folder, device, kind, before, error
):
    training = Training(folder, kind, device, before)
    points = chosen(training.lines, None if EVERY else 12)

    for at in points:
        training.check(at, error)

    assert training.interrupted > 0.9 * len(points)
    report(f"{kind} {device} {before} {error.__name__}", training, len(points))


def report(what: str, training: Training, points: int) -> None:
    print(  # noqa: T201 - shown by the session, which runs with -s
        f"\n{what}: {training.interrupted} of {points} points, {training.refused} refused",
        flush=True,
    )

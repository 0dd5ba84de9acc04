"""An exception at any line of training: nothing is half done, or the solver says so.

``nox -s interrupts`` raises many more, for every type of solver; here it is a sample.
"""

import gc
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from expect_error import expect_error
from interruptions import POINTS, Interrupt, chosen, interrupted, told
from needs import needs

from demitasse import Solver
from demitasse.errors import ErrorCode, SnapshotError
from demitasse.io.data.databases.writing import write_database
from demitasse.io.proto import NetParameter, SolverParameter, parse_text
from demitasse.training import RULES, EarlyStopping

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
        net = NET.replace("FOLDER", folder.as_posix())
        self.param.net_param.CopyFrom(parse_text(net, NetParameter))
        self.device, self.refused, self.interrupted = device, 0, 0
        with self.made() as solver:
            _, self.state = solver.snapshot(folder / f"{kind}_{device.replace(':', '_')}_{before}")
            with Interrupt() as whole:
                solver.step(1)
            self.lines = whole.lines
            self.wanted = self.come_to(solver)

    def made(self) -> Solver:
        # with more patience than there are tests, as many of them as a quick machine makes
        stopping = EarlyStopping("loss", patience=1_000_000)
        solver = Solver(self.param, device=self.device, early_stopping=stopping)
        solver.step(self.before)
        return solver

    def come_to(self, solver: Solver) -> list[object]:
        """Train to a certain iteration, and return all that counts then."""
        solver.step(self.before + 3 - solver.iter)
        return self.state_of(solver)

    def state_of(self, solver: Solver) -> list[object]:
        """Return all that counts in a solver between two iterations."""
        blobs = [blob.cpu_data().tobytes() for blob in solver.net.structure.params_list]
        history = [array.tobytes() for array in solver.history.arrays()]
        resume = solver._checkpointer.resumable.now()
        resume.ClearField("snapshot")
        return [solver.iter, solver.current_step, blobs, history, resume]

    def check(self, at: int, error: type[BaseException]) -> None:
        with self.made() as solver:
            with interrupted(at, error) as interrupt:
                solver.step(1)
            self.interrupted += interrupt.raised
            try:
                found = self.come_to(solver)
            except SnapshotError:
                self.refused += 1
                with expect_error(SnapshotError, ErrorCode.BAD_STATE):
                    solver.snapshot(self.folder / "torn")
                solver.restore(self.state)
                found = self.come_to(solver)

        file, line = self.lines[at - 1]
        assert found == self.wanted, f"{error.__name__} at {file}:{line}, the {at}th line"


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError] if POINTS else [MemoryError])
@pytest.mark.parametrize("before", [0, BEFORE], ids=["first", "later"])
@pytest.mark.parametrize("kind", RULES if POINTS else ["Adam"])
@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_an_iteration_that_is_cut_short_is_done_again_or_refused(
    folder, device, kind, before, error
):
    training = Training(folder, kind, device, before)
    numbers = chosen(training.lines, 3)

    for at in numbers:
        training.check(at, error)

    assert training.interrupted > 0.5 * len(numbers)
    what = f"{kind} on {device} after {before} iterations, {error.__name__}"
    told(f"{what}, {training.refused} times refused", training.interrupted)


class CtrlC:
    """Interrupts this thread after a random time, once for each ``with`` block, from another.

    Args:
        longest: The longest time, in seconds.
    """

    def __init__(self, longest: float) -> None:
        self._random, self._longest = random.Random(5), longest
        self._begun, self._wanted = threading.Event(), False
        self._main = threading.get_ident()

    def begun(self) -> None:
        """The work that is to be interrupted has begun."""
        self._begun.set()

    def __enter__(self) -> None:
        gc.disable()  # an exception in a finalizer is lost, as Python has it
        self._begun.clear()
        self._thread = threading.Thread(target=self._interrupt)
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._thread.join()
        gc.enable()

    def _interrupt(self) -> None:
        assert self._begun.wait(60)
        time.sleep(self._random.uniform(0, self._longest))
        signal.pthread_kill(self._main, signal.SIGINT)


@pytest.mark.usefixtures("interrupts")
@needs("signals")
@pytest.mark.skipif(not POINTS, reason="its moments are random: `nox -s interrupts` runs it")
@pytest.mark.parametrize("kind", RULES if POINTS else ["Nesterov"])
@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_real_interrupts_change_nothing_and_are_never_refused(folder, device, kind):
    training = Training(folder, kind, device, 0)
    ctrl_c = CtrlC(0.03)
    gc.collect()

    with training.made() as solver, training.made() as whole:
        solver.on_start.append(ctrl_c.begun)
        for _ in range(POINTS or 8):
            with pytest.raises(KeyboardInterrupt), ctrl_c:  # the thread is at its end by then
                solver.step(1_000_000)
        whole.step(solver.iter)

        assert training.state_of(solver) == training.state_of(whole)
    told(f"{kind} on {device}, Ctrl-C", POINTS)

"""Solver: trains a net, tests it now and then, and writes snapshots.

Source: Caffe, ``src/caffe/solver.cpp``.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, Literal, Self

import numpy as np

from demitasse.device import Device
from demitasse.errors import ConfigError, NetError
from demitasse.log import get_logger, number
from demitasse.net import Net
from demitasse.proto import ResumeState, SolverParameter, read_solver_params, upgrade_solver
from demitasse.solvers.evaluate import mean_outputs
from demitasse.solvers.history import History
from demitasse.solvers.nets import make_test_nets, make_train_net
from demitasse.solvers.policies import check_policy, learning_rate
from demitasse.solvers.progress import progress_of, set_progress
from demitasse.solvers.report import first_nonfinite, tell_outputs
from demitasse.solvers.snapshot import check_prefix, read_checked, write_snapshot
from demitasse.solvers.updater import Updater
from demitasse.solvers.updates import check_update

__all__ = ["Solver"]

Request = Literal["stop", "snapshot"]
Callback = Callable[[], None]

log = get_logger(__name__)


class Solver:
    """Trains a net. ``Solver(...)`` makes an object of the class that the ``type`` names.

    Args:
        source: A solver's prototxt file or message.
        device: Where its nets run; None asks the configuration.
        dtype: "float32" or "float64".
        plan: Whether backends may lower operations; None asks the configuration.
        seed: Key of all random numbers; None takes ``random_seed``, then the configuration.
        base_dir: Folder where named files are looked for besides the working directory; by
            default that of ``source``.
        on_nonfinite: What to do when the loss is NaN or infinite: "warn" once, or "stop" with an
            error before the weights are changed.
        rank: Which of ``ranks`` data-parallel workers this is.
        ranks: How many of them there are.

    Attributes:
        param: The solver's fields; changes count from the next iteration on.
        net: The net that is trained.
        test_nets: The nets to test with; they hold the weights of ``net``.
        iter: Updates made so far.
        lr: Learning rate of the last update; before the first, NaN.
        current_step: Steps that the ``multistep`` policy has taken.
        stopped: Whether the last run was ended by a request.
        on_start: Called before the passes of each iteration.
        on_gradients_ready: Called after them, before the update.

    Raises:
        ConfigError: The type is unknown, or a field is missing or has a value it cannot have.
        SnapshotError: Snapshots could not be written where they are to go.
        DemitasseError: A net cannot be made.
    """

    kind: ClassVar[str] = ""
    """The ``type`` of solver files that asks for this class."""

    _given: tuple[SolverParameter, Path | None] | None = None

    def __new__(cls, source: str | os.PathLike[str] | SolverParameter, **options: Any) -> Self:
        """Choose the class by the ``type``, unless a class was called by its own name."""
        del options
        if cls.kind:
            return super().__new__(cls)
        given = _read(source)
        solver = super().__new__(_class_of(given[0].type))
        solver._given = given
        return solver  # type: ignore[return-value]

    def __init__(
        self,
        source: str | os.PathLike[str] | SolverParameter,
        *,
        device: str | Device | None = None,
        dtype: str = "float32",
        plan: bool | None = None,
        seed: int | None = None,
        base_dir: str | os.PathLike[str] | None = None,
        on_nonfinite: Literal["warn", "stop"] = "warn",
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.param, folder = self._given or _read(source)
        self._given = None
        base = folder if base_dir is None else Path(base_dir)
        _check(self.param, self.kind)
        if seed is None and self.param.random_seed >= 0:
            seed = self.param.random_seed
        options: dict[str, Any] = {
            "device": device, "dtype": dtype, "plan": plan, "rank": rank, "ranks": ranks,
        }  # fmt: skip
        self.net = make_train_net(self.param, base, {**options, "seed": seed})
        options |= {"device": self.net.device, "seed": self.net.seed}
        self.test_nets = make_test_nets(self.param, base, options)
        for net in self.test_nets:
            net.share_trained_layers_with(self.net)
        self._updater = Updater(self.net, self.kind)
        self.iter = self.current_step = 0
        self.lr = math.nan
        self.stopped = False
        self.on_start: list[Callback] = []
        self.on_gradients_ready: list[Callback] = []
        self._on_nonfinite = on_nonfinite
        self._warned = False
        self._losses: deque[float] = deque(maxlen=self.param.average_loss)
        self._requests: deque[Request] = deque()
        self._shown = (perf_counter(), 0)
        self._untouched = self._progress()
        self._before_test: ResumeState | None = None
        log.info("Solver scaffolding done.")

    # -- training ------------------------------------------------------------------------------

    def step(self, iterations: int) -> None:
        """Make so many updates, testing, displaying and writing snapshots when they are due."""
        last = self.iter + iterations
        self.stopped = False
        self._shown = (perf_counter(), self.iter)
        while self.iter < last:
            self.net.clear_param_diffs()
            if self._test_is_due():
                self.test_all()
                if self.stopped:
                    break
            self._iterate()
            request = self._next_request()
            due = self.param.snapshot and self.iter % self.param.snapshot == 0
            if due or request == "snapshot":
                self.snapshot()
            if request == "stop":
                self.stopped = True
                break

    def solve(self, resume: str | os.PathLike[str] | None = None) -> None:
        """Train to ``max_iter``, write a last snapshot, show the last loss and test once more.

        Args:
            resume: A state to continue from.

        Raises:
            ConfigError: ``max_iter`` is missing.
        """
        if not self.param.HasField("max_iter"):
            message = "max_iter is missing; say how many iterations to train for, or call step"
            raise ConfigError(message)
        log.info("Solving %s", self.net.name)
        log.info("Learning Rate Policy: %s", self.param.lr_policy)
        if resume is not None:
            log.info("Restoring previous solver status from %s", os.fspath(resume))
            self.restore(resume)
        self.step(self.param.max_iter - self.iter)
        saved = self.param.snapshot and self.iter % self.param.snapshot == 0
        if self.param.snapshot_after_train and not saved:
            self.snapshot()
        if self.stopped:
            log.info("Optimization stopped early.")
            return
        if self._display_is_due():
            self._losses.append(self.net.forward())
            loss = self.smoothed_loss
            metrics = {"phase": "train", "iter": self.iter, "loss": loss}
            log.info("Iteration %d, loss = %s", self.iter, number(loss), extra={"metrics": metrics})
        if self.param.test_interval and self.iter % self.param.test_interval == 0:
            self.test_all()
        log.info("Optimization Done.")

    def apply_update(self) -> None:
        """Change the weights by the gradients that the net holds; one more iteration is done."""
        before = self.current_step
        self.lr, self.current_step = learning_rate(self.param, self.iter, before)
        if self.param.lr_policy == "multistep" and self.current_step != before:
            log.info("MultiStep Status: Iteration %d, step = %d", self.iter, self.current_step)
        if self._display_is_due():
            metrics = {"phase": "train", "iter": self.iter, "lr": self.lr}
            log.info(
                "Iteration %d, lr = %s", self.iter, number(self.lr), extra={"metrics": metrics}
            )
        self._updater.apply(self.param, self.lr, self.iter)
        self.iter += 1

    def _iterate(self) -> None:
        _call(self.on_start)
        display = self._display_is_due()
        self.net.debug_info = display and self.param.debug_info
        loss = sum(self.net.forward_backward() for _ in range(self.param.iter_size))
        loss /= self.param.iter_size
        self._losses.append(loss)
        if not math.isfinite(loss):
            self._tell_nonfinite(loss)
        if display:
            self._display()
        _call(self.on_gradients_ready)
        self.apply_update()

    @property
    def smoothed_loss(self) -> float:
        """Mean loss of the last ``average_loss`` iterations; NaN before the first."""
        return math.fsum(self._losses) / len(self._losses) if self._losses else math.nan

    @property
    def history(self) -> History:
        """What the solver remembers of each parameter."""
        return self._updater.history

    def _test_is_due(self) -> bool:
        interval = self.param.test_interval
        due = bool(interval) and self.iter % interval == 0
        return due and (self.iter > 0 or self.param.test_initialization)

    def _display_is_due(self) -> bool:
        return bool(self.param.display) and self.iter % self.param.display == 0

    def _display(self) -> None:
        now = perf_counter()
        since, first = self._shown
        seconds, loss = now - since, self.smoothed_loss
        speed = (self.iter - first) / (seconds or 1)
        outputs = {name: self.net.blob_by_name(name).cpu_data() for name in self.net.outputs}
        metrics = {
            "phase": "train",
            "iter": self.iter,
            "loss": loss,
            "iterations_per_second": speed,
            "outputs": {name: value.tolist() for name, value in outputs.items()},
        }
        log.info(
            "Iteration %d (%s iter/s, %ss/%d iters), loss = %s",
            self.iter, number(speed), number(seconds), self.param.display, number(loss),
            extra={"metrics": metrics},
        )  # fmt: skip
        self._shown = (now, self.iter)
        tell_outputs(log, "Train", self.net, outputs)

    def _tell_nonfinite(self, loss: float) -> None:
        message = (
            f"the loss is {loss} at iteration {self.iter}; what first went wrong is "
            f"{first_nonfinite(self.net)} (the last learning rate was {number(self.lr)}; try a "
            "smaller one, or clip_gradients)"
        )
        if self._on_nonfinite == "stop":
            raise NetError(message)
        if not self._warned:
            log.warning(message)
        self._warned = True

    # -- testing -------------------------------------------------------------------------------

    def test_all(self) -> list[dict[str, np.ndarray]]:
        """Test with every test net.

        Returns:
            For each net tested to the end, the mean of every output.
        """
        self._before_test = self._progress()  # a snapshot on the way repeats this test
        results = []
        for index in range(len(self.test_nets)):
            if not self.stopped:
                results.append(self.test(index))
        self._before_test = None
        return results

    def test(self, index: int = 0) -> dict[str, np.ndarray]:
        """Run ``test_iter`` batches through a test net with the present weights.

        Returns:
            The mean of every output over the batches; empty when the test was interrupted.
        """
        log.info("Iteration %d, Testing net (#%d)", self.iter, index)
        net = self.test_nets[index]
        net.share_trained_layers_with(self.net)
        batches = self.param.test_iter[index]
        means, loss = mean_outputs(net, batches, self._may_go_on)
        if self.stopped:
            log.info("Test interrupted.")
            return {}
        metrics: dict[str, Any] = {"phase": "test", "net": index, "iter": self.iter}
        metrics["outputs"] = {name: value.tolist() for name, value in means.items()}
        if self.param.test_compute_loss:
            log.info("Test loss: %s", number(loss), extra={"metrics": metrics | {"loss": loss}})
        tell_outputs(log, "Test", net, means)
        log.debug("Test net (#%d) done.", index, extra={"metrics": metrics})
        return means

    def _may_go_on(self) -> bool:
        while request := self._next_request():
            if request == "snapshot":
                self.snapshot()
            else:
                self.stopped = True
        return not self.stopped

    # -- requests ------------------------------------------------------------------------------

    def request(self, action: Request | None) -> None:
        """Ask a running solver to stop or to write a snapshot when it can; safe in signal handlers.

        Args:
            action: "stop", "snapshot", or None to take back what has not been done yet.
        """
        if action is None:
            self._requests.clear()
        elif action in {"stop", "snapshot"}:
            self._requests.append(action)
        else:
            message = f'a solver can be asked to "stop" or to "snapshot", not {action!r}'
            raise ConfigError(message)

    def _next_request(self) -> Request | None:
        return self._requests.popleft() if self._requests else None

    # -- snapshots -----------------------------------------------------------------------------

    def snapshot(self, prefix: str | os.PathLike[str] | None = None) -> tuple[Path, Path]:
        """Write the weights and the state as ``<prefix>_iter_<N>...``.

        Args:
            prefix: ``snapshot_prefix`` by default.

        Returns:
            The weights file and the state file.

        Raises:
            SnapshotError: They cannot be written; files that were there are whole.
        """
        begin = self.param.snapshot_prefix if prefix is None else os.fspath(prefix)
        return write_snapshot(self, begin, self._before_test or self._progress())

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Continue from a state that we or Caffe wrote, with the weights it names.

        A run continued from our own state goes on bit for bit as if it had never stopped. A state
        that does not tell of data positions begins at the first record.

        Raises:
            SnapshotError: The state cannot be read or does not fit; nothing has changed.
            WeightsError: Its weights cannot be read; nothing has changed.
            ShapeError: Its weights do not fit; nothing has changed.
        """
        sorts = len(self.history.memories)
        params, names = self.net.learnable_params, _param_names(self.net)
        state = read_checked(Path(path), params, names, sorts, self.kind)
        if state.learned_net:
            self.net.load(state.learned_net)
        self.history.load(state.history)
        self.iter, self.current_step = state.iter, state.current_step
        resume = state.resume if state.resume is not None else self._untouched
        set_progress(resume, self.net, self.test_nets)
        self._losses.clear()
        self._losses.extend(resume.losses)
        self.lr, self._warned = math.nan, False

    def _progress(self) -> ResumeState:
        return progress_of(self.net, self.test_nets, getattr(self, "_losses", ()))

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the threads and close the files of all nets."""
        for net in (self.net, *self.test_nets):
            net.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.net!r}, iteration {self.iter})"


def _read(source: str | os.PathLike[str] | SolverParameter) -> tuple[SolverParameter, Path | None]:
    if isinstance(source, SolverParameter):
        param = SolverParameter()
        param.CopyFrom(source)
        upgrade_solver(param)
        return param, None
    return read_solver_params(source), Path(source).parent


def _class_of(name: str) -> type[Solver]:
    from demitasse.solvers import SOLVERS

    if name not in SOLVERS:
        message = f"unknown solver type {name!r}; known are {', '.join(SOLVERS)}"
        raise ConfigError(message)
    return SOLVERS[name]


def _check(param: SolverParameter, kind: str) -> None:
    """Refuse fields before any net is made."""
    check_update(param, kind)
    if param.HasField("lr_policy"):
        check_policy(param)
    for name in ("average_loss", "iter_size"):
        value: int = getattr(param, name)
        if value < 1:
            message = f"{name} must be at least 1, it is {value}"
            raise ConfigError(message)
    for name in ("display", "snapshot", "test_interval", "max_iter"):
        value = getattr(param, name)
        if value < 0:
            message = f"{name} must not be negative, it is {value}"
            raise ConfigError(message)
    check_prefix(param)


def _param_names(net: Net) -> list[str]:
    """Return what messages call each learnable parameter."""
    names: dict[int, str] = {}
    for number_, (layer, index) in zip(
        net.learnable_param_ids, net.param_layer_indices, strict=True
    ):
        names.setdefault(number_, f"parameter {index} of layer {net.layer_names[layer]!r}")
    return [names[i] for i in range(len(names))]


def _call(callbacks: Sequence[Callback]) -> None:
    for callback in callbacks:
        callback()

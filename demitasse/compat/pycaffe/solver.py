"""``caffe.get_solver``, the solver classes, and training with several of them (``NCCL``).

Source: Caffe, ``python/caffe/_caffe.cpp`` and ``src/caffe/parallel.cpp``.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from demitasse import training as solvers
from demitasse.compat.pycaffe.common import begin_log
from demitasse.compat.pycaffe.net import FileName, Net, NetVec
from demitasse.core.log import get_logger
from demitasse.core.text import html_of
from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.proto import SolverParameter, read_solver_params

if TYPE_CHECKING:
    from demitasse.training.distributed.gradient_buffer import GradientAverager


__all__ = [
    "NCCL", "AdaDeltaSolver", "AdaGradSolver", "AdamSolver", "NesterovSolver", "RMSPropSolver",
    "SGDSolver", "Solver", "get_solver", "has_nccl", "set_multiprocess", "set_solver_count",
    "set_solver_rank", "solver_count", "solver_rank",
]  # fmt: skip

_logger = get_logger(__name__)

_solvers = {"count": 1, "rank": 0}


class Solver:
    """A solver of any type, from its file.

    ``get_solver`` uses the file's type. A class such as ``AdamSolver(file)`` has its own type for
    any file, as in Caffe.

    Raises:
        PrototxtError: The file cannot be read.
        ConfigError: The file contains an invalid or unsupported field.
    """

    type = ""

    def __init__(self, param_file: FileName | SolverParameter) -> None:
        begin_log()
        rank, count = rank_and_count()
        self._solver = solvers.Solver(
            _source(param_file), type=self.type or None, rank=rank, world_size=count
        )
        self.net = Net._over(self._solver.net)
        self.test_nets = NetVec(Net._over(net) for net in self._solver.test_nets)
        self._start_logged = False

    @property
    def iter(self) -> int:
        """Number of updates so far."""
        return self._solver.iter

    @property
    def param(self) -> SolverParameter:
        """The solver's message; changes take effect at the next iteration."""
        return self._solver.param

    @property
    def lr(self) -> float:
        """Learning rate of the next update."""
        return self._solver.next_lr

    def step(self, iterations: int) -> None:
        """Run a number of updates."""
        if not self._start_logged:  # Caffe logs this in solve only; log parsers start there
            _logger.info("Solving %s", self._solver.net.name)
            self._start_logged = True
        self._solver.step(int(iterations))

    def solve(self, resume_file: FileName | None = None) -> None:
        """Train to the last iteration, optionally from a snapshot."""
        self._start_logged = True
        self._solver.solve(None if resume_file is None else os.fsdecode(resume_file))

    def snapshot(self) -> None:
        """Write the weights and the state."""
        self._solver.snapshot()

    def restore(self, state_file: FileName) -> None:
        """Continue from a snapshot."""
        self._solver.restore(os.fsdecode(state_file))

    def apply_update(self) -> None:
        """Apply one update from the present gradients."""
        self._solver.apply_update()

    def share_weights(self, net: Net) -> None:
        """Share the parameters of this solver's net with another net."""
        net.share_with(self.net)

    def add_callback(
        self,
        on_start: Callable[[], None] | NCCL,
        on_gradients_ready: Callable[[], None] | None = None,
    ) -> None:
        """Call functions at the start of an iteration and when its gradients are ready.

        An ``NCCL`` has both functions.
        """
        if isinstance(on_start, NCCL):
            nccl = on_start
            on_start, on_gradients_ready = nccl.on_start, nccl.on_gradients_ready
        if on_gradients_ready is None:
            message = "add_callback takes two functions, or one NCCL"
            raise TypeError(message)
        self._solver.on_start.append(on_start)
        self._solver.on_gradients_ready.append(on_gradients_ready)

    def __repr__(self) -> str:
        return f"pycaffe.{self._solver!r}"

    def _repr_html_(self) -> str:
        return html_of(self._solver)


class SGDSolver(Solver):
    """Stochastic gradient descent with momentum; base of the other types, as in Caffe."""

    type = "SGD"


class NesterovSolver(SGDSolver):
    """Nesterov's accelerated gradient."""

    type = "Nesterov"


class AdaGradSolver(SGDSolver):
    """AdaGrad."""

    type = "AdaGrad"


class RMSPropSolver(SGDSolver):
    """RMSProp."""

    type = "RMSProp"


class AdaDeltaSolver(SGDSolver):
    """AdaDelta."""

    type = "AdaDelta"


class AdamSolver(SGDSolver):
    """Adam."""

    type = "Adam"


CLASSES: dict[str, type[Solver]] = {SGDSolver.type: SGDSolver}
CLASSES |= {kind.type: kind for kind in SGDSolver.__subclasses__()}


def get_solver(param_file: FileName | SolverParameter) -> Solver:
    """Return the solver that a file describes.

    Raises:
        PrototxtError: The file cannot be read.
        ConfigError: Its type is unknown.
    """
    source = _source(param_file)
    param = source if isinstance(source, SolverParameter) else read_solver_params(source)
    return CLASSES.get(param.type, Solver)(source)


def _source(given: FileName | SolverParameter) -> str | SolverParameter:
    return given if isinstance(given, SolverParameter) else os.fsdecode(given)


def has_nccl() -> bool:
    """Return True if CuPy provides NCCL, so that several GPUs can train one net.

    The query does not initialize CUDA, since a process cannot fork afterwards.
    """
    from demitasse.backends.cupy.library.nccl import missing

    return not missing()


def solver_count() -> int:
    """Return the number of solvers that train together."""
    return _solvers["count"]


def set_solver_count(count: int) -> None:
    """Set the number of solvers, 1 or more; each later solver reads its share of the data."""
    _set("count", count, least=1)


def solver_rank() -> int:
    """Return the rank of this solver."""
    return _solvers["rank"]


def set_solver_rank(rank: int) -> None:
    """Set the rank of this solver, from 0; only rank 0 tests and writes snapshots."""
    _set("rank", rank, least=0)


def _set(name: str, value: int, least: int) -> None:
    if value < least:
        message = f"got solver {name} {value}, expected {least} or more"
        raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field=f"solver_{name}", got=value)
    _solvers[name] = int(value)


def rank_and_count() -> tuple[int, int]:
    """Return the rank of a new solver, and the number of solvers, which is larger."""
    rank, count = solver_rank(), solver_count()
    if rank >= count:
        message = (
            f"got rank {rank} of {count} solvers, which have ranks from 0; call set_solver_count, "
            "too"
        )
        raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field="solver_rank", got=rank)
    return rank, count


def set_multiprocess(multiprocess: bool) -> None:
    """Do nothing: each solver may always run in its own process."""
    del multiprocess


class NCCL:
    """All-reduce of the gradients of several solvers, one GPU each; no-op for one solver.

    Pass an ``NCCL`` to ``solver.add_callback``, and also to ``solver.net.after_backward`` to
    overlap the all-reduce of each layer's gradients with backward. There is no timeout. ``uid`` is
    the result of ``new_uid`` in one process.

    Raises:
        ConfigError: There are several solvers, and the net is not on a GPU or NCCL is missing.
        ParallelError: NCCL failed.
    """

    def __init__(self, solver: Solver, uid: str | bytes) -> None:
        self.solver = solver
        self._gradients: GradientAverager | None = None
        if solver_count() > 1:
            name = uid.encode("latin-1") if isinstance(uid, str) else bytes(uid)
            self._gradients = _connected(solver.net, name)

    @staticmethod
    def new_uid() -> bytes:
        """Return an identifier for a group of solvers."""
        from demitasse.backends.cupy.library.nccl import new_uid

        return new_uid() if has_nccl() else uuid.uuid4().hex.encode()

    def bcast(self) -> None:
        """Broadcast the weights of rank 0."""
        if self._gradients is not None:
            self._gradients.broadcast_weights()

    def on_start(self) -> None:
        """Do nothing at the start of an iteration."""

    def on_gradients_ready(self) -> None:
        """Replace the gradients by their mean over all solvers."""
        if self._gradients is not None:
            self._gradients.finish()

    def __call__(self, layer: int) -> None:
        """Start the all-reduce of a layer's gradients, after its backward."""
        if self._gradients is not None:
            self._gradients.start_layer(layer)


def _connected(net: Net, uid: bytes) -> GradientAverager:
    from demitasse.training.distributed.gradient_buffer import GradientAverager

    engine = net._net
    connector = engine.device.backend.connector
    count = solver_count()
    why = f"this net is on {engine.device}" if connector is None else connector.missing()
    if connector is None or why:
        message = (
            f"NCCL connects GPUs, and {why}; without it {count} processes train one net by: "
            f"mpirun -n {count} demitasse train --solver SOLVER"
        )
        raise ConfigError(message, code=ErrorCode.UNAVAILABLE, library="NCCL")
    return GradientAverager(engine, connector.join(uid, solver_rank(), count, timeout=math.inf))

"""``caffe.get_solver`` and the solver classes over the engine's Solver.

Source: Caffe, ``python/caffe/_caffe.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable

from demitasse import training as solvers
from demitasse.compat.pycaffe.files import Path, path_of
from demitasse.compat.pycaffe.glog import begin_log
from demitasse.compat.pycaffe.net import Net, NetVec
from demitasse.compat.pycaffe.parallel import NCCL, place
from demitasse.core.html_repr import html_of
from demitasse.core.log import get_logger
from demitasse.io.proto import SolverParameter, read_solver_params

__all__ = [
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "NesterovSolver",
    "RMSPropSolver",
    "SGDSolver",
    "Solver",
    "get_solver",
]

_logger = get_logger(__name__)


class Solver:
    """A solver of any type, from its file.

    The type of the file counts for ``get_solver``; a class called by its own name, as
    ``AdamSolver(file)``, is of that type whatever the file says, as in Caffe.

    Attributes:
        net: The net that is trained.
        test_nets: The nets to test with.

    Raises:
        PrototxtError: The file cannot be read.
        ConfigError: It asks for something that is not there.
    """

    type = ""

    def __init__(self, param_file: Path | SolverParameter) -> None:
        begin_log()
        rank, ranks = place()
        self._solver = solvers.Solver(
            _source(param_file), type=self.type or None, rank=rank, world_size=ranks
        )
        self.net = Net._over(self._solver.net)
        self.test_nets = NetVec(Net._over(net) for net in self._solver.test_nets)
        self._told = False

    @property
    def iter(self) -> int:
        """Updates made so far."""
        return self._solver.iter

    @property
    def param(self) -> SolverParameter:
        """The solver's message; what is set in it counts from the next iteration on."""
        return self._solver.param

    @property
    def lr(self) -> float:
        """The learning rate of the next update."""
        return self._solver.next_lr

    def step(self, iterations: int) -> None:
        """Make a number of updates."""
        if not self._told:  # Caffe says so in solve alone, and parsers of its log begin there
            _logger.info("Solving %s", self._solver.net.name)
            self._told = True
        self._solver.step(int(iterations))

    def solve(self, resume_file: Path | None = None) -> None:
        """Train to the end, from a snapshot if one is given."""
        self._told = True
        self._solver.solve(None if resume_file is None else path_of(resume_file))

    def snapshot(self) -> None:
        """Write the weights and the state."""
        self._solver.snapshot()

    def restore(self, state_file: Path) -> None:
        """Continue from a snapshot."""
        self._solver.restore(path_of(state_file))

    def apply_update(self) -> None:
        """Make one update from the gradients as they are."""
        self._solver.apply_update()

    def share_weights(self, net: Net) -> None:
        """Let another net hold the parameters of this solver's net."""
        net.share_with(self.net)

    def add_callback(
        self,
        on_start: Callable[[], None] | NCCL,
        on_gradients_ready: Callable[[], None] | None = None,
    ) -> None:
        """Call functions when an iteration starts and when its gradients are there.

        Args:
            on_start: The first; or an ``NCCL``, which is both.
            on_gradients_ready: The second.
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
    """Stochastic gradient descent with momentum, and what the others derive from, as in Caffe."""

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


CLASSES: dict[str, type[Solver]] = {
    kind.type: kind
    for kind in (
        SGDSolver, NesterovSolver, AdaGradSolver, RMSPropSolver, AdaDeltaSolver, AdamSolver,
    )
}  # fmt: skip


def get_solver(param_file: Path | SolverParameter) -> Solver:
    """Return the solver that a file describes.

    Raises:
        PrototxtError: The file cannot be read.
        ConfigError: Its type is unknown.
    """
    source = _source(param_file)
    param = source if isinstance(source, SolverParameter) else read_solver_params(source)
    return CLASSES.get(param.type, Solver)(source)


def _source(given: Path | SolverParameter) -> str | SolverParameter:
    return given if isinstance(given, SolverParameter) else path_of(given)

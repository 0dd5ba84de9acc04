"""Solvers of 2014: the enum ``solver_type`` becomes the string ``type``.

Source: Caffe, ``src/caffe/util/upgrade_proto.cpp`` (UpgradeSolverType).
"""

from demitasse.errors import ErrorCode, PrototxtError
from demitasse.io.proto.caffe_pb2 import SolverParameter

__all__ = ["upgrade_solver_type"]

TYPES = {
    SolverParameter.SGD: "SGD",
    SolverParameter.NESTEROV: "Nesterov",
    SolverParameter.ADAGRAD: "AdaGrad",
    SolverParameter.RMSPROP: "RMSProp",
    SolverParameter.ADADELTA: "AdaDelta",
    SolverParameter.ADAM: "Adam",
}


def upgrade_solver_type(solver: SolverParameter) -> list[str]:
    """Replace ``solver_type`` by ``type``, in place."""
    if not solver.HasField("solver_type"):
        return []
    old = SolverParameter.SolverType.Name(solver.solver_type)
    if solver.HasField("type"):
        message = (
            f"the solver has both solver_type: {old} and type: {solver.type!r}; "
            "solver_type is the old name: remove it"
        )
        raise PrototxtError(message, code=ErrorCode.CONFLICT, field="solver_type")
    solver.type = TYPES[solver.solver_type]
    solver.ClearField("solver_type")
    return [f"solver_type: {old} was read as type: {solver.type!r}"]

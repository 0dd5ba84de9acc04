"""Upgrade old formats to the current format, in Caffe's order and with Caffe's results.

Source: Caffe, ``src/caffe/util/upgrade_proto.cpp``.
"""

from demitasse.io.proto.caffe_pb2 import NetParameter, SolverParameter
from demitasse.io.proto.upgrade_batch_norm import upgrade_batch_norm
from demitasse.io.proto.upgrade_data import upgrade_data_transformation
from demitasse.io.proto.upgrade_inputs import upgrade_inputs
from demitasse.io.proto.upgrade_notes import Lines, Problem
from demitasse.io.proto.upgrade_solver import upgrade_solver_type
from demitasse.io.proto.upgrade_v0 import upgrade_v0
from demitasse.io.proto.upgrade_v1 import upgrade_v1

__all__ = ["Problem", "upgrade_net", "upgrade_solver"]


def upgrade_net(net: NetParameter, lines: Lines | None = None) -> list[str]:
    """Upgrade a net to the current format, in place.

    Args:
        net: A net of any format, with or without parameters.
        lines: Line of each entry of ``layers`` (or else ``layer``); updated to match ``net.layer``.

    Returns:
        A note per kind of change, and a note of class Problem per dropped item.

    Raises:
        PrototxtError: A V0 layer has an unknown type, or padding before a layer that takes none,
            or the inputs have too few shapes.
    """
    lines = [] if lines is None else lines
    notes: list[str] = []
    notes += upgrade_v0(net, lines)
    notes += upgrade_data_transformation(net)
    notes += upgrade_v1(net)
    notes += upgrade_inputs(net, lines)
    notes += upgrade_batch_norm(net)
    return notes


def upgrade_solver(solver: SolverParameter) -> list[str]:
    """Upgrade a solver to the current format, in place.

    Nets inside the solver are not changed, as in Caffe.

    Returns:
        A note per kind of change.

    Raises:
        PrototxtError: Both ``solver_type`` and ``type`` are set.
    """
    return upgrade_solver_type(solver)

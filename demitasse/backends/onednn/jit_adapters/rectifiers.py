"""Activations in the epilogues of our convolution kernels."""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.kernels.rectifier import NOTHING, Rectifier
from demitasse.backends.onednn.step import op_title
from demitasse.backends.step import Declined

__all__ = ["rectifier_of"]

SIX = (0.0, 6.0)
"""The limits of ReLU6."""


def rectifier_of(then: ops.Activation | None) -> Rectifier:
    """Return what our kernels do for an activation, or for none.

    Raises:
        Declined: It is none of theirs.
    """
    if then is None:
        return NOTHING
    if then.function == "clip":
        low, high = then.parameters
        return Rectifier(limits=(low, high))
    if then.function == "relu6" and not any(then.parameters):
        return Rectifier(limits=SIX)
    if then.function == "relu":
        slope = then.parameters[0] if then.parameters else 0.0
        if slope >= 0:  # so it is monotone, and its gradient known from the result
            return Rectifier(slope=slope)
    message = (
        f"{op_title(then)} runs by itself; oneDNN appends ReLU with a slope of at least 0, "
        "our kernels also ReLU6 and Clip"
    )
    raise Declined(message)

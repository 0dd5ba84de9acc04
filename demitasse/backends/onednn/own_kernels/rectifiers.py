"""Activations that our kernels of convolutions apply to what they have computed."""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.kernels.rectifier import NOTHING, RELU, Rectifier
from demitasse.backends.onednn.step import called
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
    if then.function in ("relu", "relu6") and not any(then.parameters):
        return RELU if then.function == "relu" else Rectifier(limits=SIX)
    message = (
        f"{called(then)} runs by itself; oneDNN appends ReLU without a slope, our kernels also "
        "ReLU6 and Clip"
    )
    raise Declined(message)

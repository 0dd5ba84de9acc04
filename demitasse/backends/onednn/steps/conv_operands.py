"""The operands of a convolution in kernels of our own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from demitasse.backends.kernels.epilogue import NOTHING, Rectifier
from demitasse.backends.onednn.arguments import Argument, GradArg, InputArg, OutputArg
from demitasse.backends.step import Operand

__all__ = ["ConvOperands", "Folded", "GradientOperands"]


class Folded:
    """Weights and offsets that somebody makes of several layers' parameters.

    Attributes:
        bias: One offset for each channel of the top.
        update: Takes new weights, in C order; given by what computes with them.
        scale: Takes new factors, one for each channel of the top, where what computes reads the
            parameter itself and multiplies it with them; else None.
    """

    update: Callable[[np.ndarray], None]
    scale: Callable[[np.ndarray], None] | None

    def __init__(self, bias: np.ndarray) -> None:
        self.bias, self.scale = bias, None


@dataclass(frozen=True)
class ConvOperands:
    """The operands of a convolution's forward pass, and what follows.

    Attributes:
        source: What is read.
        target: What is written.
        weight: The parameter.
        bias: One offset for each channel of the output: a port, or an array; None for none.
        then: What becomes of the sums.
        slopes: One slope for each channel of the output, for what is below 0; None for none.
        given: Whether somebody else gives the filters that are used.
    """

    source: InputArg
    target: OutputArg
    weight: Operand
    bias: InputArg | np.ndarray | None = None
    then: Rectifier = NOTHING
    slopes: InputArg | None = None
    given: bool = False

    def offsets(self) -> np.ndarray | None:
        """Return the offsets as they are now."""
        return self.bias.array() if isinstance(self.bias, InputArg) else self.bias


@dataclass(frozen=True)
class GradientOperands:
    """The operands of the gradients of weights and bias.

    Attributes:
        source: The convolution's input.
        dy: The gradient of its output.
        weight: The gradient of its weights, in C order unless said otherwise.
        bias: The gradient of its bias, or None.
        packed: The gradient of its weights in the library's layout.
    """

    source: InputArg
    dy: InputArg
    weight: GradArg
    bias: GradArg | None
    packed: GradArg

    @property
    def ports(self) -> tuple[Argument, ...]:
        """All of them."""
        return (self.source, self.dy, self.weight, *([self.bias] if self.bias else []))

    def done(self) -> None:
        """Clean up, after the gradients have been computed."""
        self.weight.done()
        if self.bias:
            self.bias.done()

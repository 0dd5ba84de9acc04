"""The operands of a convolution in kernels of our own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from demitasse.backends.kernels.rectifier import NOTHING, Rectifier
from demitasse.backends.onednn.arguments import Argument, GradArg, InputArg, OutputArg
from demitasse.backends.step import Layouts, Operand


class Folded:
    """Weights and offsets folded from several layers' parameters.

    Attributes:
        bias: One offset for each channel of the top.
        update: Accepts new weights in C order; set by the call that uses them.
        scale: Accepts new factors, one per channel of the top, if the call multiplies the
            parameter with them; else None.
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
        layouts: The layouts of other Steps.
        bias: One offset per channel of the output, an argument or an array; None for none.
        then: The activation of the sums.
        slopes: One slope for each channel of the output, for negative values; None for none.
        external_weights: True if ``Folded`` supplies the filters.
    """

    source: InputArg
    target: OutputArg
    weight: Operand
    layouts: Layouts
    bias: InputArg | np.ndarray | None = None
    then: Rectifier = NOTHING
    slopes: InputArg | None = None
    external_weights: bool = False

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
        layouts: The layouts of other Steps.
    """

    source: InputArg
    dy: InputArg
    weight: GradArg
    bias: GradArg | None
    packed: GradArg
    layouts: Layouts

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """All of them."""
        return (self.source, self.dy, self.weight, *([self.bias] if self.bias else []))

    def done(self) -> None:
        """Clean up, after the gradients have been computed."""
        self.weight.done()
        if self.bias:
            self.bias.done()

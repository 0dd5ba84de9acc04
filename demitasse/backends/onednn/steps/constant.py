"""The same values in each pass: a detector's prior boxes.

They are copied in each pass, for their memory may be another blob's in between.
"""

from __future__ import annotations

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.onednn.arguments import Call, OutputArg
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.step import Operands

__all__ = ["ConstantStep"]


class ConstantStep(OnednnStep[ops.Constant]):
    """A copy in C order; bottoms that only lend their shapes have no gradient."""

    backward_replayable = False

    def __init__(self, engine: Engine, op: ops.Constant, at: Operands) -> None:
        super().__init__(engine, op, at)
        values = np.frombuffer(op.values, np.float32)
        self.values = aligned(values.size)
        self.values[:] = values
        self.kept_bytes = self.values.nbytes

    def prepare(self) -> None:
        row = self.engine.plain((self.values.size,))
        found = self.engine.describe_reorder(row.handle, row.handle)
        target = OutputArg(Arg.DST, self.at.top[0], row)
        fixed = [(Arg.SRC, row.handle, self.values)]
        self.forward_calls = [Call(self.engine, found, [target], fixed)]

    def backward(self) -> None:
        for blob, wanted in zip(self.at.bottom, self.at.propagate_down, strict=True):
            if wanted:
                blob.set_diff(0)

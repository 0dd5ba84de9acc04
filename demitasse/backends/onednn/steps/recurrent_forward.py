"""LSTM and RNN without gradients: the steps in a kernel of our own, between two products.

Nothing of a step is kept but its hidden state. Where gradients are wanted, ``RecurrentStep`` keeps
what they need.
"""

from __future__ import annotations

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.recurrent import output_call, steps_call
from demitasse.backends.onednn.ports import Port, Reader, Writer
from demitasse.backends.onednn.step import NEEDS_BOTTOM, OnednnStep
from demitasse.backends.onednn.steps.products import Own, Product
from demitasse.backends.step import Declined, Operand, Operands, decline_in_place

__all__ = ["RecurrentForwardStep"]


class RecurrentForwardStep(OnednnStep[ops.Recurrent]):
    """T steps of N sequences, with G gates for each of H hidden values."""

    def __init__(self, engine: Engine, op: ops.Recurrent, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(at, NEEDS_BOTTOM)
        if at.backward:
            message = "gradients are wanted; this keeps nothing for them"
            raise Declined(message)
        params, bottom, top = at.params, at.bottom, at.top[0]
        many, wide = op.steps * op.rows, params[0].shape[0]
        z, static = self._array(op.steps, op.rows, wide), None
        self._add(many, params[:2], bottom[0], z)
        if op.static:
            static = self._array(op.rows, wide)
            self._add(op.rows, params[2:3], bottom[2], static)
        if op.cell == "LSTM":
            self.forward_calls.append(steps_call(engine, op, at, z, static, top.buffer))
            return
        hidden = self._array(op.steps, op.rows, op.m)
        self.forward_calls.append(steps_call(engine, op, at, z, static, lambda: hidden))
        self._add(many, params[-2:], hidden, top)
        self.forward_calls.append(output_call(engine, top))

    def _add(
        self,
        rows: int,
        params: tuple[Operand, ...],
        source: Operand | np.ndarray,
        target: Operand | np.ndarray,
    ) -> None:
        """Add a product of rows with a weight, and perhaps a bias."""
        product = Product(self.engine, rows, *params, alone=True)
        x: Port = (
            Own(Arg.SRC, product.x, source)
            if isinstance(source, np.ndarray)
            else Reader(Arg.SRC, source, product.x)
        )
        y: Port = (
            Own(Arg.DST, product.y, target)
            if isinstance(target, np.ndarray)
            else Writer(Arg.DST, target, product.y)
        )
        self.forward_calls.append(product.forward(x, y))

    def _array(self, *shape: int) -> np.ndarray:
        """Return zeros in memory that primitives like."""
        array = aligned(int(np.prod(shape))).reshape(shape)
        self.kept += array.nbytes
        return array

"""Kernels of recurrent layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.onednn.library.candidates import channel_blocks
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.ports import Parameter
from demitasse.backends.onednn.threads import wanted
from demitasse.backends.step import Declined, Operand, Operands

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from demitasse.backends.onednn.own_kernels.recurrent_calls import (
        LearnedSteps,
        OutputCall,
        StepsCall,
    )

__all__ = ["learned_steps", "output_call", "steps_call"]

LARGE = 1 << 20
"""Weights of the hidden state from which on the library's products are faster in training."""


def steps_call(
    engine: Engine,
    op: ops.Recurrent,
    at: Operands,
    z: np.ndarray,
    static: np.ndarray | None,
    hidden: Callable[[], np.ndarray],
) -> StepsCall:
    """Return what computes the steps of a recurrent layer.

    Args:
        engine: The engine.
        op: The operation.
        at: Its blobs.
        z: The inputs of the gates. Shape: (T, N, G * H).
        static: What each sequence adds to its inputs in all steps; None for nothing. Shape:
            (N, G * H).
        hidden: Returns where the hidden states go. Shape: (T, N, H).

    Raises:
        Declined: There are no kernels here.
    """
    tuning = engine.tuning.as_set(wanted())
    if not tuning.width:
        message = "no kernels are made at run time; steps without gradients need those"
        raise Declined(message)
    weight, size = at.params[3 if op.static else 2], op.m
    blocks = channel_blocks(engine, (z.shape[-1] // size, size, size), tuning.width)
    from demitasse.backends.kernels.recurrence.forward import Recurrence
    from demitasse.backends.onednn.own_kernels.recurrent_calls import StepsCall

    kernel = Recurrence(op.cell, z, tuning, static=static)
    return StepsCall(engine, op, at, Parameter(Arg.WEIGHTS, weight, blocks), kernel, hidden)


def learned_steps(
    engine: Engine, op: ops.Recurrent, weight: Operand, z: np.ndarray
) -> LearnedSteps:
    """Return the steps of a recurrent layer that gradients are wanted of.

    Args:
        engine: The engine.
        op: The operation.
        weight: That of the hidden state.
        z: The inputs of the gates, which become what gradients need. Shape: (T, N, G * H).

    Raises:
        Declined: There are no kernels here, or the library multiplies faster.
    """
    tuning = engine.tuning.as_set(wanted())
    if not tuning.width:
        message = "no kernels are made at run time; steps need those"
        raise Declined(message)
    if math.prod(weight.shape) >= LARGE:
        message = f"a weight {weight.shape} that is too large for the caches"
        raise Declined(message)
    size = op.m
    blocks = channel_blocks(engine, (z.shape[-1] // size, size, size), tuning.width)
    from demitasse.backends.onednn.own_kernels.recurrent_calls import LearnedSteps

    return LearnedSteps(engine, op, weight, blocks, z, tuning)


def output_call(engine: Engine, blob: Operand) -> OutputCall:
    """Return what makes tanh of what a blob holds, where there are kernels.

    Args:
        engine: The engine.
        blob: The blob.
    """
    from demitasse.backends.kernels.recurrence.forward import Squashing
    from demitasse.backends.onednn.own_kernels.recurrent_calls import OutputCall

    return OutputCall(engine, blob, Squashing(blob.count, engine.tuning.as_set(wanted())))

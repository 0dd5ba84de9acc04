"""Kernel selection for a convolution."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.kernels.depthwise import plan_depthwise
from demitasse.backends.kernels.few_inputs import plan_direct
from demitasse.backends.kernels.few_outputs import plan_few_outputs
from demitasse.backends.kernels.grouped import plan_grouped
from demitasse.backends.kernels.pointwise import plan_pointwise
from demitasse.backends.kernels.separable import plan_separable
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.winograd import plan_winograd
from demitasse.backends.onednn.jit_adapters.calls import ConvKernels, rectifier_of
from demitasse.backends.onednn.jit_adapters.depthwise import DepthwiseKernels
from demitasse.backends.onednn.jit_adapters.few_channels import DirectKernels, NarrowKernels
from demitasse.backends.onednn.jit_adapters.grouped import GroupedKernels
from demitasse.backends.onednn.jit_adapters.pointwise import PointwiseKernels
from demitasse.backends.onednn.jit_adapters.winograd import WinogradKernels
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.threads import wanted
from demitasse.backends.step import Declined

if TYPE_CHECKING:
    from collections.abc import Sequence

NARROW = 8
"""Floats of the narrowest vectors that kernels are made for."""


def conv_kernels(
    engine: Engine,
    op: ops.Conv,
    x: ops.Shape,
    y: ops.Shape,
    followers: Sequence[ops.Op] = (),
    *,
    training: bool,
) -> ConvKernels:
    """Return which kernels may run a convolution, whatever the layouts.

    Args:
        engine: The engine.
        op: The convolution.
        x: Its input's shape, (N, C, *spatial).
        y: Its output's shape.
        followers: What may run as one with it.
        training: Whether filters change between passes.
    """
    if op.after:
        return ConvKernels(engine, x, ("other pads after the axes than before",))
    tuning = engine.tuning.as_set(wanted())
    if max(op.kernel) == 1:  # a product of matrices, which the library does best
        if not training:
            with suppress(Declined):
                tuning.require("pointwise")
                return PointwiseKernels(engine, x, plan_pointwise(op, x, y, tuning))
        return ConvKernels(engine, x)
    if op.group == x[1] > 1 and not training:
        try:
            tuning.require("depthwise")
            strips = plan_depthwise(op, x, y, _tuning_for(tuning, x[1]))
            joined = _joins(op, followers, tuning)
            return DepthwiseKernels(engine, x, strips, joined=joined)
        except Declined as declined:
            return ConvKernels(engine, x, (str(declined),))
    groups = None
    if not training:
        with suppress(Declined):
            tuning.require("few_outputs")
            return NarrowKernels(engine, x, plan_few_outputs(op, x, y, tuning))
    with suppress(Declined):
        tuning.require("grouped")
        parts = plan_grouped(op, x, y, tuning)
        groups = parts if parts.shared or not training else None
    if groups is not None and groups.beats_tiles:
        return GroupedKernels(engine, x, groups)
    try:
        tuning.require("winograd")
        tiling = plan_winograd(op, x, y, tuning, training=training)
        return WinogradKernels(engine, x, tiling, training=training)
    except Declined as declined:
        tiled = str(declined)
    if groups is not None:
        return GroupedKernels(engine, x, groups)
    try:
        tuning.require("few_inputs")
        return DirectKernels(engine, x, plan_direct(op, x, y, tuning))
    except Declined as declined:
        return ConvKernels(engine, x, (tiled, str(declined)))


def _tuning_for(tuning: Tuning, channels: int) -> Tuning:
    """Return a tuning whose vectors are no wider than there are channels, if there is one."""
    return replace(tuning, width=NARROW) if NARROW <= channels < tuning.width else tuning


def _joins(op: ops.Conv, followers: Sequence[ops.Op], tuning: Tuning) -> bool:
    """Return whether a depthwise convolution is fused with a 1x1 convolution that follows."""
    for follower in followers:
        if isinstance(follower, ops.Conv):
            with suppress(Declined):
                return plan_separable(op, follower, tuning) is not None
            return False
        if isinstance(follower, ops.Activation):
            try:
                rectifier_of(follower)
            except Declined:
                return False
        elif not isinstance(follower, (ops.BatchNorm, ops.Scale)):
            return False
    return False

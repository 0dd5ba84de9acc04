"""Several operations in one primitive, where those behind the first run in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.base import Operands, Step
from demitasse.backends.onednn.backend import OnednnBackend
from demitasse.backends.onednn.step import PreparedStep
from demitasse.backends.onednn.steps.convolution import ConvStep, Folded
from demitasse.backends.onednn.steps.inner_product import InnerProductStep
from demitasse.backends.onednn.steps.norm_parts import (
    channelled,
    is_plain_relu,
    stored_statistics,
)
from demitasse.backends.onednn.steps.normalization import fuse_norm
from demitasse.backends.onednn.steps.pooling import PoolStep
from demitasse.backends.onednn.steps.sums import EltwiseSumStep

__all__ = ["fuse"]

Links = Sequence[tuple[Any, Any, Any]]
"""Operations with their operands and Steps."""


def fuse(
    backend: OnednnBackend,
    chain: Sequence[ops.Op],
    operands: Sequence[Operands],
    steps: Sequence[Step | None],
) -> Step | None:
    """Return one Step for a chain of operations, or None."""
    first: Any = steps[0]
    if isinstance(chain[0], (ops.BatchNorm, ops.Scale)):
        # what the last one writes is what all of them write
        whole = [replace(operands[0], top=operands[-1].top), *operands[1:]]
        return None if None in steps else fuse_norm(backend, chain, whole)
    if not isinstance(first, (ConvStep, InnerProductStep, EltwiseSumStep)):
        return None
    rest = list(zip(chain[1:], operands[1:], steps[1:], strict=True))
    if [is_plain_relu(op) for op, *_ in rest] == [True]:
        return first.with_relu(operands[-1].top[0])
    if isinstance(first, ConvStep) and not any(at.backward for at in operands):
        tail = Tail.of(first, rest)
        if tail is not None and (tail.links or tail.other is not None or tail.pool):
            return _with_tail(first, tail)
    return None


@dataclass(frozen=True)
class Tail:
    """What can be part of a convolution in inference.

    Attributes:
        links: Factors and offsets of its channels.
        other: A blob that is added, or None.
        relu: Whether a rectifier follows.
        pool: MAX pooling that comes after it, or before, which is the same; or None.
        target: The blob that is written.
    """

    links: Links
    other: Any
    relu: bool
    pool: PoolStep | None
    target: Any

    @classmethod
    def of(cls, conv: ConvStep, rest: Links) -> Tail | None:
        """Return the operations behind a convolution as a tail; None where they are others."""
        left, result, other = list(rest), conv.at.top[0], None
        links = []
        while left and _is_link(left[0], conv.op):
            links.append(left.pop(0))
            result = links[-1][1].top[0]
        if left and _is_sum(left[0][0]):
            at = left.pop(0)[1]
            other, result = at.bottom[at.bottom[0] is result], at.top[0]
        relu, pool = False, None
        while left:
            op, at, step = left.pop(0)
            if is_plain_relu(op) and not relu:
                relu = True
            elif isinstance(step, PoolStep) and step.largest and pool is None:
                pool = step
            else:
                return None
            result = at.top[0]
        return cls(links, other, relu, pool, result)


def _is_link(link: tuple[Any, Any, Any], conv: ops.Conv) -> bool:
    op, at, _ = link
    if conv.axis != 1:
        return False
    if isinstance(op, ops.BatchNorm):
        return op.use_global_stats
    return isinstance(op, ops.Scale) and len(at.bottom) == 1 and channelled(op, conv.top)


def _is_sum(op: Any) -> bool:
    return isinstance(op, ops.Eltwise) and op.operation == "SUM" and op.coefficients == (1.0, 1.0)


def _with_tail(conv: ConvStep, tail: Tail) -> Step | None:
    if tail.links:
        step = FoldedConv(conv, tail)
        return step if step.prepare() else None
    return conv.fused(tail.target, relu=tail.relu, other=tail.other, pool=tail.pool)


class FoldedConv(PreparedStep):
    """A convolution and the factors and offsets of its channels behind it, with fixed parameters.

    The folded weights are made again when a parameter has changed.
    """

    def __init__(self, conv: ConvStep, tail: Tail) -> None:
        super().__init__(conv.backend, conv.at)
        self.conv, self.tail = conv, tail
        self.blobs = [*self.at.params, *(blob for _, at, _ in tail.links for blob in at.params)]
        self.versions: tuple[tuple[int, int], ...] = ()

    def prepare(self) -> bool:
        """Make the primitive in the layouts of the convolution alone; False where there is none."""
        shape = self.engine.plain(self.conv.layouts[1].shape)
        self.plain_weight, self.bias = aligned(shape.size), aligned(self.conv.y[1])
        folded = Folded(self.bias)
        step = self.conv.fused(
            self.tail.target,
            relu=self.tail.relu,
            other=self.tail.other,
            folded=folded,
            pool=self.tail.pool,
        )
        if step is None:
            return False
        self.folded, self.forward_calls = folded, step.forward_calls
        self.kept = self.plain_weight.nbytes + self.bias.nbytes
        return True

    def forward(self) -> None:
        memories = [blob.data_memory for blob in self.blobs]
        versions = tuple((memory.serial, memory.version) for memory in memories)
        if versions != self.versions:
            self._fold()
            self.versions = tuple((memory.serial, memory.version) for memory in memories)
        self.forward_calls[0]()

    def _fold(self) -> None:
        """Multiply factors into the weights, channel by channel, and add up the offsets."""
        params = self.at.params
        channels = self.conv.y[1]
        factor: np.ndarray = np.ones(channels, np.float32)
        self.bias[...] = _values(params[1]) if self.conv.op.bias else 0.0
        for op, at, _ in self.tail.links:
            if isinstance(op, ops.BatchNorm):
                mean, variance = stored_statistics(at.params)
                by = np.reciprocal(np.sqrt(variance + np.float32(op.eps)))
                self.bias[...] = (self.bias - mean) * by
            else:
                by = _values(at.params[0])
                self.bias[...] = self.bias * by + (_values(at.params[1]) if op.bias else 0.0)
            factor = factor * by
        weight = _values(params[0]).reshape(channels, -1)
        np.multiply(weight, factor[:, np.newaxis], out=self.plain_weight.reshape(channels, -1))
        self.folded.update(self.plain_weight)


def _values(blob: Any) -> np.ndarray:
    values: np.ndarray = blob.data_memory.cpu_data()[: blob.count]
    return values

"""Several operations in one primitive, where those behind the first run in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse.backends import ops
from demitasse.backends.base import Operands, Step
from demitasse.backends.onednn.backend import OnednnBackend
from demitasse.backends.onednn.constants import Arg
from demitasse.backends.onednn.convolution import ConvStep
from demitasse.backends.onednn.inner_product import InnerProductStep
from demitasse.backends.onednn.layout import aligned
from demitasse.backends.onednn.norm_parts import (
    channelled,
    is_plain_relu,
    stored_statistics,
)
from demitasse.backends.onednn.normalization import fuse_norm
from demitasse.backends.onednn.ports import Call, Reader, Writer
from demitasse.backends.onednn.step import PreparedStep
from demitasse.backends.onednn.sums import EltwiseSumStep
from demitasse.backends.onednn.winograd.convolution import TiledConvolution

__all__ = ["fuse"]

Links = Sequence[tuple[Any, Any]]


def fuse(
    backend: OnednnBackend,
    chain: Sequence[ops.Op],
    operands: Sequence[Operands],
    steps: Sequence[Step | None],
) -> Step | None:
    """Return one Step for a chain of operations, or None."""
    first: Any = steps[0]
    if isinstance(chain[0], (ops.BatchNorm, ops.Scale)):
        return None if None in steps else fuse_norm(backend, chain, operands)
    if not isinstance(first, (ConvStep, InnerProductStep, EltwiseSumStep)):
        return None
    rest = list(zip(chain[1:], operands[1:], strict=True))
    if [is_plain_relu(op) for op, _ in rest] == [True]:
        return first.with_relu()
    if isinstance(first, ConvStep) and not any(at.backward for at in operands):
        return _folded(first, rest)
    return None


def _folded(conv: ConvStep, rest: list[tuple[Any, Any]]) -> Step | None:
    """Return a convolution whose weights contain what follows, or None."""
    relu = is_plain_relu(rest[-1][0])
    links = rest[:-1] if relu else rest
    shape = conv.op.top
    for op, at in links:
        stored = isinstance(op, ops.BatchNorm) and op.use_global_stats
        learned = isinstance(op, ops.Scale) and len(at.bottom) == 1 and channelled(op, shape)
        if not stored and not learned:
            return None
    if not links or conv.op.axis != 1:
        return None
    step = FoldedConv(conv, links, relu=relu)
    return step if step.prepare() else None


class FoldedConv(PreparedStep):
    """A convolution and the factors and offsets of its channels behind it, with fixed parameters.

    The folded weights are made again when a parameter has changed.
    """

    def __init__(self, conv: ConvStep, links: Links, *, relu: bool) -> None:
        super().__init__(conv.backend, conv.at)
        self.conv, self.links, self.relu = conv, links, relu
        self.blobs = [*self.at.params, *(blob for _, at in links for blob in at.params)]
        self.versions: tuple[tuple[int, int], ...] = ()

    def prepare(self) -> bool:
        """Make the primitive in the layouts of the convolution alone; False where there is none."""
        conv, engine = self.conv, self.engine
        x, w, y = conv.layouts
        attributes = engine.attributes_with_relu if self.relu else engine.attributes
        bias = engine.plain((conv.y[1],))
        found = conv.describe_forward(x.handle, w.handle, y.handle, attributes, bias)
        if not found:
            return False
        self.plain_weight, self.weight = aligned(int(np.prod(w.shape))), aligned(w.size)
        self.bias = aligned(bias.size)
        self.kept = self.plain_weight.nbytes + self.weight.nbytes
        tiled = self.conv.tiled(x, y, relu=self.relu, folded=self.bias)
        if tiled:
            self.forward_calls = [tiled]
            return True
        ports = [Reader(Arg.SRC, self.at.bottom[0], x), Writer(Arg.DST, self.at.top[0], y)]
        fixed = [
            (Arg.WEIGHTS, w.handle, self.weight),
            (Arg.BIAS, bias.handle, self.bias),
        ]
        self.forward_calls = [Call(engine, found, ports, fixed)]
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
        params, call = self.at.params, self.forward_calls[0]
        channels = self.conv.y[1]
        factor: np.ndarray = np.ones(channels, np.float32)
        self.bias[...] = _values(params[1]) if self.conv.op.bias else 0.0
        for op, at in self.links:
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
        if isinstance(call, TiledConvolution):
            call.filters.update(self.plain_weight)
            return
        layout = self.conv.layouts[1]
        self.engine.reorder(self.plain_weight, self.engine.plain(layout.shape), self.weight, layout)


def _values(blob: Any) -> np.ndarray:
    values: np.ndarray = blob.data_memory.cpu_data()[: blob.count]
    return values

"""Fused gradients of Split, Eltwise, ReLU and Concat."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from demitasse.backends import ops
from demitasse.backends.kernels.elementwise import MOST, AddReluScatter, Rows
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.onednn.arguments import Call, InputArg, OutputArg
from demitasse.backends.onednn.jit_adapters.calls import KernelCall, images_of, spoils
from demitasse.backends.onednn.jit_adapters.unary import ElementwiseCall
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.step import OnednnStep, Runnable
from demitasse.backends.onednn.steps.concat import ConcatStep
from demitasse.backends.onednn.steps.elementwise import ElementwiseStep, SumStep
from demitasse.backends.onednn.steps.slice import SplitStep
from demitasse.backends.onednn.threads import wanted
from demitasse.backends.step import AnyStep, Declined, Operand


class Chain(NamedTuple):
    """Steps of consecutive layers; None for absent layers.

    Attributes:
        head: Of a sum, or of a Concat.
        relu: Of a ReLU in place.
        split: Of a Split.
        others: Steps before these layers.
    """

    head: AnyStep | None
    relu: AnyStep | None
    split: AnyStep | None
    others: list[AnyStep | None]

    @classmethod
    def of(cls, steps: Sequence[AnyStep | None]) -> Chain:
        """Classify Steps in the order of their layers."""
        rest = list(steps)
        split = rest.pop() if rest and isinstance(rest[-1], SplitStep) else None
        relu = rest.pop() if rest and _rectifies(rest[-1]) else None
        head = rest.pop() if rest and isinstance(rest[-1], SumStep | ConcatStep) else None
        return cls(head, relu, split, rest)


class _Part(NamedTuple):
    """A range of elements, and the targets of its gradients."""

    rows: Rows
    targets: list[OutputArg]


class GradientSumStep(OnednnStep[ops.Op]):
    """The fused gradient of a sum or Concat, an in-place ReLU and a Split; at least two of them.

    A pass over some of these layers runs their own Steps.

    Args:
        engine: The engine.
        steps: The layers' own Steps, in the order of the layers.

    Raises:
        Declined: Other operations, or gradients in different layouts.
    """

    def __init__(self, engine: Engine, steps: Sequence[AnyStep | None]) -> None:
        head, relu, split, others = Chain.of(steps)
        last, found = steps[-1], [step for step in (head, relu, split) if step is not None]
        if others or last is None or len(found) < 2:
            message = "others than a sum or joining, a ReLU in place and a Split"
            raise Declined(message)
        super().__init__(engine, last.op, last.at)
        self.backward_calls = [self._call(head, relu, found)]

    def _call(
        self,
        head: AnyStep | None,
        relu: AnyStep | None,
        found: Sequence[AnyStep],
    ) -> _GradientSumCall:
        calls = [gradient_calls(step) for step in found]
        sources = list(_readers(calls[-1][0], self.at.top))
        layout = sources[0].layout
        if not 1 <= len(sources) <= MOST or not all(alike(s.layout, layout) for s in sources):
            message = f"{len(sources)} gradients; up to {MOST} in one layout are added"
            raise Declined(message)
        if not all(_lies(call, layout) for own in calls for call in own):
            message = "gradients in several layouts"
            raise Declined(message)
        y = None
        if relu is not None:
            known = gradient_calls(relu)[0].arguments[0]
            if not isinstance(known, InputArg) or not alike(known.layout, layout):
                message = "a ReLU in another layout than its gradient"
                raise Declined(message)
            y = known
        # what lies between the layers, rectified where a ReLU is in place there
        between = found[0].at.top[0] if head is not None else found[0].at.bottom[0]
        total = OutputArg(Arg.DST, between, layout, diff=True)
        parts = list(_parts(head, layout)) if head is not None else []
        apart = [call for own in reversed(calls) for call in own]
        tuning = self.engine.tuning.as_set(wanted())
        return _GradientSumCall(self.engine, (sources, y, total), parts, apart, tuning)


class _GradientSumCall(KernelCall):
    """Fused sum of gradients, ReLU gradient and scatter.

    Args:
        engine: The engine.
        arguments: The gradients, what the ReLU gave, and where their sum goes.
        parts: To whom it is handed on; empty for nobody but whoever reads the sum.
        apart: What computes the same, where memories overlap.
        tuning: The kernel's vectors and threads.
    """

    def __init__(
        self,
        engine: Engine,
        arguments: tuple[Sequence[InputArg], InputArg | None, OutputArg],
        parts: Sequence[_Part],
        apart: Sequence[Runnable],
        tuning: Tuning,
    ) -> None:
        self._sources, self._y, self._total = arguments
        self._parts, self._apart, self._tuning = parts, apart, tuning
        self._made: dict[tuple[int, bool], AddReluScatter] = {}
        if not parts:
            self._parts = [_Part(Rows.all_of(self._total.layout.size), [])]
        targets = [argument for part in parts for argument in part.targets]
        y = [] if self._y is None else [self._y]
        code = f"handed on llvm:{tuning.instructions}"
        super().__init__(engine, (*self._sources, *y, self._total, *targets), code)
        self._only_sum = not parts

    def __call__(self) -> None:
        sources = [argument.array() for argument in self._sources]
        y = None if self._y is None else self._y.array()
        targets = [[argument.array() for argument in part.targets] for part in self._parts]
        pairs = zip(self._parts, targets, strict=True)
        if any(spoils(own, sources, alike=part.rows.are_whole) for part, own in pairs):
            for call in self._apart:
                call()
            return
        total = None
        if self._only_sum or self._total.memory.persistent:
            total = self._total.array()
        for index, (part, own) in enumerate(zip(self._parts, targets, strict=True)):
            if own or total is not None:
                self._scatter_kernel(index, part, total=total is not None)(sources, own, y, total)

    def _scatter_kernel(self, index: int, part: _Part, *, total: bool) -> AddReluScatter:
        made = self._made.get((index, total))
        if made is None:
            made = self._made[index, total] = AddReluScatter(
                part.rows,
                len(self._sources),
                len(part.targets),
                self._tuning,
                relu=self._y is not None,
                total=total,
            )
        return made


def _rectifies(step: AnyStep | None) -> bool:
    """Return whether it is a ReLU in place."""
    if not isinstance(step, ElementwiseStep) or step.op.function != "relu":
        return False
    return not any(step.op.parameters) and step.at.top[0] is step.at.bottom[0]


def gradient_calls(step: AnyStep) -> list[Call | ElementwiseCall]:
    """Return what computes a Step's gradients.

    Raises:
        Declined: There is nothing, or it is neither a primitive nor an elementwise kernel.
    """
    calls = step.backward_calls if isinstance(step, OnednnStep) else []
    found = [call for call in calls if isinstance(call, Call | ElementwiseCall)]
    if not found or len(found) < len(calls):
        message = "gradients that are not wanted, or that other kernels compute"
        raise Declined(message)
    return found


def _readers(call: Call | ElementwiseCall, tops: Sequence[Operand]) -> Iterator[InputArg]:
    """Yield what reads the gradients of some blobs."""
    for argument in call.arguments:
        if (
            isinstance(argument, InputArg)
            and argument.diff
            and any(argument.blob is top for top in tops)
        ):
            yield argument


def alike(one: Layout, other: Layout) -> bool:
    """Return whether elements lie alike, and in C order as one row or as several."""
    return one is other or (one.plain and other.plain)


def _lies(call: Call | ElementwiseCall, layout: Layout) -> bool:
    """Return whether a call reads a gradient, or all that it reads of it, in a layout."""
    return all(
        alike(argument.layout, layout)
        for argument in call.arguments
        if isinstance(argument, InputArg) and argument.diff
    )


def bottom_layouts(head: AnyStep, layout: Layout) -> list[Layout]:
    """Return the layouts of the gradients that a sum or a Concat hands on.

    Args:
        head: Its Step.
        layout: That of the top's gradient.

    Raises:
        Declined: They are no parts of the top's: multiples of it, or parts along another axis.
    """
    if isinstance(head, ConcatStep):
        if head.op.axis != 1:
            message = "joined along another axis than channels"
            raise Declined(message)
        return head.layouts
    if isinstance(head, SumStep) and any(factor != 1 for factor in head.op.coefficients):
        message = f"coefficients {head.op.coefficients}; gradients are handed on as they are"
        raise Declined(message)
    return [layout] * len(head.at.bottom)


def _parts(head: AnyStep, layout: Layout) -> Iterator[_Part]:
    """Yield the bottoms of a sum, all as one, or those of a Concat.

    Raises:
        Declined: A bottom's gradient is no whole rows of the top's.
    """
    at, layouts = head.at, bottom_layouts(head, layout)
    if not isinstance(head, ConcatStep):
        wanted_ones = [b for b, down in zip(at.bottom, at.propagate_down, strict=True) if down]
        if len(wanted_ones) > MOST:
            message = f"{len(wanted_ones)} bottoms; up to {MOST} are written at a time"
            raise Declined(message)
        targets = [OutputArg(Arg.DST, blob, layout, diff=True) for blob in wanted_ones]
        yield _Part(Rows.all_of(layout.size), targets)
        return
    first = 0
    for blob, own, down in zip(at.bottom, layouts, at.propagate_down, strict=True):
        rows = _rows(layout, own, first, at.top[0].shape)
        yield _Part(rows, [OutputArg(Arg.DST, blob, own, diff=True)] if down else [])
        first += own.shape[1]


def _rows(whole: Layout, own: Layout, first: int, shape: ops.Shape) -> Rows:
    """Return where the channels from ``first`` on lie.

    Args:
        whole: The layout of all of them; where they lie in C order, perhaps as one row.
        own: That of some.
        first: The first of those.
        shape: That of all of them, (N, C, ...).

    Raises:
        Declined: They are no rows.
    """
    n, channels, count = shape[0], shape[1], own.shape[1]
    inner = math.prod(shape[2:])
    if whole.plain and own.plain:
        return Rows(n, count * inner, first * inner, channels * inner, count * inner)
    one, other = images_of(whole), images_of(own)
    if one is not None and other is not None and _dense(one) and _dense(other):
        if one.block == other.block and first % one.block == 0:
            return Rows(n, count * inner, first * inner, channels * inner, count * inner)
        if one.block == channels and other.block == count:
            return Rows(n * inner, count, first, channels, count)
    message = f"channels from {first} on, which are no rows of the whole"
    raise Declined(message)


def _dense(images: Images) -> bool:
    """Return whether images lie without gaps: in blocks, or channels last."""
    _, c, h, w = images.shape
    blocks = images.block == c or images.block_stride == h * w * images.block
    pixels = images.column_stride == images.block and images.row_stride == w * images.block
    return blocks and pixels and images.image_stride == c * h * w

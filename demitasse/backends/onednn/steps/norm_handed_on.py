"""The gradient of a normalisation that is handed on, together with those of other readers."""

from __future__ import annotations

from collections.abc import Sequence

from demitasse.backends import ops
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.norm.backward import Handed
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.own_kernels.images import images_of
from demitasse.backends.onednn.own_kernels.norm_calls import HandedGradientCall
from demitasse.backends.onednn.ports import Reader, Writer
from demitasse.backends.onednn.step import OnednnStep, Runnable
from demitasse.backends.onednn.steps.concat import ConcatStep
from demitasse.backends.onednn.steps.handed_on import (
    Chain,
    alike,
    bottom_layouts,
    gradient_calls,
)
from demitasse.backends.onednn.steps.norm import NormStep
from demitasse.backends.step import AnyStep, Declined

__all__ = ["NormHandedOnStep"]


class NormHandedOnStep(OnednnStep[ops.Op]):
    """The gradient of a sum or a joining of channels, a Split, and a normalisation behind them.

    The normalisation writes where the others would copy to: what it computes is read no more. It is
    the last reader of the Split whose gradient is computed, so that those of the others are there.

    Args:
        engine: The engine.
        steps: What each runs by itself, in the order of the layers; of the normalisation what runs
            it with those after it.

    Raises:
        Declined: They are others, or their gradients lie differently.
    """

    def __init__(self, engine: Engine, steps: Sequence[AnyStep | None]) -> None:
        *before, norm = steps
        head, relu, split, rest = Chain.of(before)
        back = norm.back_ours if isinstance(norm, NormStep) else None
        alone = head is None and split is None
        if rest or relu is not None or alone or norm is None or back is None:
            message = "others than a sum or joining, a Split and a normalisation of ours"
            raise Declined(message)
        super().__init__(engine, norm.op, norm.at)
        if back.source is None or not norm.at.propagate_down[0]:
            message = "a normalisation in place, or without a gradient to hand on"
            raise Declined(message)
        layout = back.source.layout
        others: list[Reader] = []
        own = 0
        if split is not None:
            others, own = self._others(split, layout)
        parts, targets = self._targets(head, split, layout)
        copies = len(targets) // len(parts)
        handed = Handed(own, len(others) - own, tuple(parts), copies)
        images = images_of(layout)
        if images is None or not handed.fits(images, engine.tuning.width):
            message = "parts that lie differently from the whole, or too many of them"
            raise Declined(message)
        apart: list[Runnable] = [back]
        for step in (split, head):
            apart += gradient_calls(step) if step is not None else []
        between = [norm.at.bottom[0], norm.at.top[0]]
        if head is not None:
            between.append(head.at.top[0])
        call = HandedGradientCall(back, back.source, handed, others, targets, between, apart)
        self.backward_calls = [call]

    def _others(self, split: AnyStep, layout: Layout) -> tuple[list[Reader], int]:
        """Return the gradients of other readers of a Split, and the place of ours among them.

        Raises:
            Declined: They are in other layouts, or we are no reader of it.
        """
        [call] = gradient_calls(split)
        readers = [port for port in call.ports if isinstance(port, Reader)]
        mine = [i for i, port in enumerate(readers) if port.blob is self.at.bottom[0]]
        if len(mine) != 1 or not all(alike(port.layout, layout) for port in readers):
            message = "readers whose gradients are in several layouts"
            raise Declined(message)
        return [port for i, port in enumerate(readers) if i != mine[0]], mine[0]

    def _targets(
        self, head: AnyStep | None, split: AnyStep | None, layout: Layout
    ) -> tuple[list[Images], list[Writer]]:
        """Return where the elements of each part lie, and what is written, part by part.

        Raises:
            Declined: There is nothing that could be written, or not everything is wanted.
        """
        at = (head or split or self).at
        if not all(at.propagate_down):
            message = "a gradient that is not wanted"
            raise Declined(message)
        layouts = [layout] if head is None else bottom_layouts(head, layout)
        images = [images_of(one) for one in layouts]
        found = [one for one in images if one is not None]
        if len(found) < len(images):
            message = "no images in blocks of channels"
            raise Declined(message)
        pairs = zip(at.bottom, layouts, strict=True)
        targets = [Writer(Arg.DST, blob, own, diff=True) for blob, own in pairs]
        return (found if isinstance(head, ConcatStep) else found[:1]), targets

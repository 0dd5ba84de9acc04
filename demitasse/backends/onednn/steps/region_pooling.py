"""ROIPooling and PSROIPooling: maxima and means of bins of regions, where no gradient is wanted.

The regions are looked at on the host in each pass, as the layer does.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TypeVar

from demitasse.backends import ops
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.own_kernels.maps import means_call, region_call
from demitasse.backends.onednn.ports import Reader, Writer
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.regions import Bins, bins, bins_between
from demitasse.backends.step import Declined, Operands

if TYPE_CHECKING:
    from demitasse.backends.onednn.own_kernels.region_calls import RegionCall

__all__ = ["RegionMeansStep", "RegionPoolStep"]

VALUES = 5
"""Fields of a region."""


O = TypeVar("O", bound=ops.RegionPool | ops.RegionMeans)  # noqa: E741 - the type of the operation


class _RegionStep(OnednnStep[O]):
    """From a map to C order."""

    cut: ClassVar[Callable[..., Bins]]
    """Cuts regions into bins."""

    def __init__(self, engine: Engine, op: O, at: Operands) -> None:
        super().__init__(engine, op, at)
        if at.backward:
            message = "a gradient is wanted; our kernels of regions run forward"
            raise Declined(message)

    def prepare(self) -> None:
        call = self._made()
        if call is None:
            message = "no kernels are made at run time; this needs one"
            raise Declined(message)
        self.call, self.forward_calls = call, [call]

    @abstractmethod
    def _made(self) -> RegionCall | None:
        """Return what runs; None where there is none."""

    def forward(self) -> None:
        op, regions = self.op, self.at.bottom[1]
        corners = regions.data_memory.cpu_data()[: op.top[0] * VALUES].reshape(-1, VALUES)
        images, size = op.bottom[0], (op.bottom[2], op.bottom[3])
        pooled = op.top[2], op.top[3]
        self.call.bins = type(self).cut(corners, op.scale, pooled, images, size)
        super().forward()


class RegionMeansStep(_RegionStep[ops.RegionMeans]):
    """From C order."""

    cut = staticmethod(bins_between)

    def _made(self) -> RegionCall | None:
        at, plain, op = self.at, self.engine.plain, self.op
        source = Reader(Arg.SRC, at.bottom[0], plain(op.bottom))
        return means_call(self.engine, op, source, Writer(Arg.DST, at.top[0], plain(op.top)))


class RegionPoolStep(_RegionStep[ops.RegionPool]):
    """From the layout of the channels that is found, or with the channels last."""

    cut = staticmethod(bins)

    def _made(self) -> RegionCall | None:
        engine, shape = self.engine, self.op.bottom
        expected = engine.whole(engine.expected(self.at.bottom[0].data_memory, shape))
        return self._in(expected) or self._in(engine.innermost_layout(shape, 1))

    def _in(self, layout: Layout) -> RegionCall | None:
        at, engine, op = self.at, self.engine, self.op
        source = Reader(Arg.SRC, at.bottom[0], layout)
        target = Writer(Arg.DST, at.top[0], engine.plain(op.top))
        return region_call(engine, op, source, target)

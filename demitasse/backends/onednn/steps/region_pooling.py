"""ROIPooling: maxima of the bins of regions of interest, where no gradient is wanted.

The regions are looked at on the host in each pass, as the layer does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.own_kernels.maps import region_call
from demitasse.backends.onednn.ports import Reader, Writer
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.regions import bins
from demitasse.backends.step import Declined, Operands

if TYPE_CHECKING:
    from demitasse.backends.onednn.own_kernels.region_calls import RegionCall

__all__ = ["RegionPoolStep"]

VALUES = 5
"""Of a region."""


class RegionPoolStep(OnednnStep[ops.RegionPool]):
    """From the layout of the channels that is found, or with the channels last, to C order."""

    def __init__(self, engine: Engine, op: ops.RegionPool, at: Operands) -> None:
        super().__init__(engine, op, at)
        if at.backward:
            message = "a gradient is wanted; our kernel of regions runs forward"
            raise Declined(message)

    def prepare(self) -> None:
        at, engine = self.at, self.engine
        expected = engine.whole(engine.expected(at.bottom[0].data_memory, self.op.bottom))
        call = self._in(expected) or self._in(engine.innermost_layout(self.op.bottom, 1))
        if call is None:
            message = "no kernels are made at run time; this needs one"
            raise Declined(message)
        self.call, self.forward_calls = call, [call]

    def _in(self, layout: Layout) -> RegionCall | None:
        at, engine, op = self.at, self.engine, self.op
        source = Reader(Arg.SRC, at.bottom[0], layout)
        target = Writer(Arg.DST, at.top[0], engine.plain(op.top))
        return region_call(engine, op, source, target)

    def forward(self) -> None:
        op, regions = self.op, self.at.bottom[1]
        corners = regions.data_memory.cpu_data()[: op.top[0] * VALUES].reshape(-1, VALUES)
        images, size = op.bottom[0], (op.bottom[2], op.bottom[3])
        self.call.bins = bins(corners, op.scale, (op.top[2], op.top[3]), images, size)
        super().forward()

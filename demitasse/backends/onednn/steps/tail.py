"""Operations after a convolution that can be fused into it, where no gradient is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from demitasse.backends import ops
from demitasse.backends.onednn.own_kernels.rectifiers import rectifier_of
from demitasse.backends.onednn.step import called
from demitasse.backends.onednn.steps.convolution import ConvStep
from demitasse.backends.onednn.steps.factors import Link
from demitasse.backends.onednn.steps.norm_parts import decline_other_scales
from demitasse.backends.onednn.steps.pooling import PoolStep
from demitasse.backends.onednn.steps.sums import ONES
from demitasse.backends.step import AnyStep, Declined, Operand, Operands

__all__ = ["Tail"]


@dataclass(frozen=True)
class Tail:
    """Operations after a convolution that run as one with it.

    Attributes:
        links: Factors and offsets of its channels.
        other: A blob that is added, or None.
        then: The activation that follows, or None.
        slopes: The slopes of a PReLU that follows in place of an activation, or None.
        pool: MAX pooling after the activation, or None. Before a rectifier, which is monotone, it
            gives the same; only kernels for which that is so run both.
        target: The blob that is written.
    """

    links: Sequence[Link]
    other: Operand | None
    then: ops.Activation | None
    slopes: Operand | None
    pool: PoolStep | None
    target: Operand

    @classmethod
    def behind(
        cls, conv: ConvStep, rest: Sequence[tuple[ops.Op, Operands, AnyStep | None]]
    ) -> Tail:
        """Return the operations after a convolution as a tail.

        Raises:
            Declined: They are others, or in another order.
        """
        left, result, other = list(rest), conv.at.top[0], None
        links: list[Link] = []
        while left and (link := _link(conv.op, *left[0][:2])):
            left.pop(0)
            links.append(link)
            result = link[1].top[0]
        if left and _is_sum(left[0][0]):
            at = left.pop(0)[1]
            other, result = at.bottom[at.bottom[0] is result], at.top[0]
        then: ops.Activation | None = None
        slopes: Operand | None = None
        pool: PoolStep | None = None
        for op, at, step in left:
            alone = then is None and slopes is None
            if isinstance(op, ops.Activation) and alone:
                rectifier_of(op)
                then = op
            elif isinstance(op, ops.PReLU) and not op.shared and alone and pool is None:
                slopes = at.params[0]
            elif isinstance(step, PoolStep) and step.largest and pool is None and slopes is None:
                pool = step
            else:
                message = f"{called(op)} does not run inside this convolution"
                raise Declined(message)
            result = at.top[0]
        return cls(links, other, then, slopes, pool, result)


def _link(conv: ops.Conv, op: ops.Op, at: Operands) -> Link | None:
    """Return an operation that factors and offsets of the convolution's channels express."""
    if conv.axis != 1:
        return None
    if isinstance(op, ops.BatchNorm) and op.use_global_stats:
        return op, at
    if isinstance(op, ops.Scale):
        try:
            decline_other_scales(op, at, conv.top)
        except Declined:
            return None
        return op, at
    return None


def _is_sum(op: ops.Op) -> bool:
    return isinstance(op, ops.Eltwise) and op.operation == "SUM" and op.coefficients == ONES

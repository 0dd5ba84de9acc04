"""Parameters of a net: who owns each, who shares it, and how fast it learns.

Source: Caffe, ``Net::AppendParam`` in ``src/caffe/net.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from demitasse.errors import ErrorCode, NetError
from demitasse.io.proto import LayerParameter, ParamSpec

__all__ = ["Param", "append_params"]

Shape = tuple[int, ...]

FACTORS = ("lr_mult", "decay_mult")


@dataclass(eq=False)
class Param:
    """One parameter of a layer.

    Attributes:
        number: Its index among the net's parameters, sharers included.
        layer: Index of its layer.
        index: Its index in that layer.
        shape: Its shape.
        name: The name it is shared by; empty for none.
        owner: The parameter whose memory it shares; None when it is its own, and learnable.
        lr_mult: Its factor of the learning rate; of a sharer, its owner's counts.
        decay_mult: Its factor of the weight decay, likewise.
        given: Those of the two factors that were written.
    """

    number: int
    layer: int
    index: int
    shape: Shape
    name: str = ""
    owner: Param | None = None
    lr_mult: float = 1.0
    decay_mult: float = 1.0
    given: set[str] = field(default_factory=set)

    @property
    def display_name(self) -> str:
        """Name of the parameter, or its index in the layer."""
        return self.name or str(self.index)


def append_params(
    params: list[Param], layer: int, message: LayerParameter, shapes: Sequence[Shape]
) -> None:
    """Append the parameters of one layer.

    Args:
        params: Those of the layers before it; extended.
        layer: Index of the layer.
        message: Its message, as the layer has it after setup.
        shapes: Shapes of its parameters.

    Raises:
        NetError: More specs than parameters, or a shared parameter does not fit its owner.
    """
    if len(message.param) > len(shapes):
        text = f"{len(message.param)} param specs are given for {len(shapes)} parameters"
        raise NetError(
            text,
            code=ErrorCode.COUNT_MISMATCH,
            field="param",
            got=len(message.param),
            expected=len(shapes),
        )
    for index, shape in enumerate(shapes):
        spec = message.param[index] if index < len(message.param) else ParamSpec()
        param = Param(len(params), layer, index, shape, spec.name)
        if spec.name:
            param.owner = next((p for p in params if p.name == spec.name), None)
        if param.owner is not None:
            _check_fit(param, param.owner, permissive=spec.share_mode == ParamSpec.PERMISSIVE)
        _set_factors(param.owner or param, spec)
        params.append(param)


def _check_fit(param: Param, owner: Param, *, permissive: bool) -> None:
    if permissive:
        mine, theirs = prod(param.shape), prod(owner.shape)
        if mine != theirs:
            message = (
                f"shared parameter {param.name!r} {param.shape} has {mine} values, its owner "
                f"{owner.shape} has {theirs}"
            )
            raise NetError(
                message, code=ErrorCode.COUNT_MISMATCH, param=param.name, got=mine, expected=theirs
            )
    elif param.shape != owner.shape:
        message = (
            f"shared parameter {param.name!r} has shape {param.shape}, its owner has "
            f"{owner.shape}; share_mode: PERMISSIVE compares counts only"
        )
        raise NetError(
            message,
            code=ErrorCode.SHAPE_MISMATCH,
            param=param.name,
            got=param.shape,
            expected=owner.shape,
        )


def _set_factors(owner: Param, spec: ParamSpec) -> None:
    """Set multipliers that a spec gives; a sharer may set a multiplier that is still unset."""
    for factor in FACTORS:
        if not spec.HasField(factor):
            continue
        value, known = getattr(spec, factor), getattr(owner, factor)
        if factor in owner.given and value != known:
            message = f"shared parameter {spec.name!r} has {factor} {value}, its owner has {known}"
            raise NetError(
                message,
                code=ErrorCode.CONFLICT,
                param=spec.name,
                field=factor,
                got=value,
                expected=known,
            )
        setattr(owner, factor, value)
        owner.given.add(factor)

"""Parameters of a net: who owns each, who shares it, and how fast it learns.

Source: Caffe, ``Net::AppendParam`` in ``src/caffe/net.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from demitasse.errors import NetError
from demitasse.proto import LayerParameter, ParamSpec

__all__ = ["ParamTable", "append_params"]

Shape = tuple[int, ...]


@dataclass
class ParamTable:
    """All parameters of a net, in order of layers.

    Attributes:
        display_names: Name of each, or its index in its layer.
        layer_indices: (layer, index in it) of each.
        owners: For each, the parameter whose memory it shares, or -1 when it is its own.
        learnable_ids: For each, which learnable parameter it is.
        learnable: The parameters that own their memory.
        names: Parameter of each name.
        lr_mult: Learning rate factor of each learnable parameter.
        decay_mult: Weight decay factor of each learnable parameter.
        has_lr: Whether that factor was given.
        has_decay: Whether that factor was given.
    """

    display_names: list[str] = field(default_factory=list)
    layer_indices: list[tuple[int, int]] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    learnable_ids: list[int] = field(default_factory=list)
    learnable: list[int] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    lr_mult: list[float] = field(default_factory=list)
    decay_mult: list[float] = field(default_factory=list)
    has_lr: list[bool] = field(default_factory=list)
    has_decay: list[bool] = field(default_factory=list)


def append_params(
    table: ParamTable, layer: int, param: LayerParameter, shapes: Sequence[Shape], all_: list[Shape]
) -> None:
    """Append the parameters of one layer.

    Args:
        table: What is known so far; extended.
        layer: Index of the layer.
        param: Its message, as the layer has it after setup.
        shapes: Shapes of its parameters.
        all_: Shapes of all parameters so far; extended.

    Raises:
        NetError: More specs than parameters, or a shared parameter does not fit its owner.
    """
    if len(param.param) > len(shapes):
        message = f"{len(param.param)} param specs are given for {len(shapes)} parameters"
        raise NetError(message)
    for index, shape in enumerate(shapes):
        spec = param.param[index] if index < len(param.param) else ParamSpec()
        me = len(table.owners)
        table.display_names.append(spec.name or str(index))
        table.layer_indices.append((layer, index))
        all_.append(shape)
        if spec.name and spec.name in table.names:
            _share(table, spec, table.names[spec.name], shape, all_)
        else:
            if spec.name:
                table.names[spec.name] = me
            table.owners.append(-1)
            table.learnable_ids.append(len(table.learnable))
            table.learnable.append(me)
            table.lr_mult.append(spec.lr_mult)
            table.decay_mult.append(spec.decay_mult)
            table.has_lr.append(spec.HasField("lr_mult"))
            table.has_decay.append(spec.HasField("decay_mult"))


def _share(table: ParamTable, spec: ParamSpec, owner: int, shape: Shape, all_: list[Shape]) -> None:
    permissive = spec.share_mode == ParamSpec.PERMISSIVE
    mine, its = prod(shape), prod(all_[owner])
    if not (mine == its if permissive else shape == all_[owner]):
        message = f"shared parameter {spec.name!r} has shape {shape}, its owner has {all_[owner]}; "
        if permissive:
            message += f"their counts, {mine} and {its}, must be equal"
        else:
            message += "share_mode: PERMISSIVE compares counts only"
        raise NetError(message)
    learnable = table.learnable_ids[owner]
    table.owners.append(owner)
    table.learnable_ids.append(learnable)
    for name, values, given in (
        ("lr_mult", table.lr_mult, table.has_lr),
        ("decay_mult", table.decay_mult, table.has_decay),
    ):
        if spec.HasField(name):
            value = getattr(spec, name)
            if given[learnable] and value != values[learnable]:
                message = (
                    f"shared parameter {spec.name!r} has {name} {value}, "
                    f"its owner has {values[learnable]}"
                )
                raise NetError(message)
            values[learnable], given[learnable] = value, True

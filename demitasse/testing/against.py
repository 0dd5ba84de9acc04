"""Hold a net against another model: another framework's file, another prototxt, recorded blobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from demitasse.errors import ErrorCode, NetError
from demitasse.net import Net
from demitasse.testing.comparison import Comparison, run_net
from demitasse.testing.differences import Difference, gap
from demitasse.testing.matching import Item, align, by_name, same_shape
from demitasse.testing.others import Other, Parameter
from demitasse.testing.others.kinds import kinds_of_layers

__all__ = ["ModelComparison", "compare_model", "compare_weights"]

PARAMETER_ROLES = {
    "BatchNorm": ("mean", "variance", ""),
    "Convolution": ("weight", "bias"),
    "Deconvolution": ("weight", "bias"),
    "InnerProduct": ("weight", "bias"),
    "PReLU": ("slope",),
    "Scale": ("scale", "shift"),
}
"""Type of layer -> what its parameters are for."""

NO_COUNTERPART = {"Split"}
"""Types of layers that no file holds: nets are given them while they are made."""


@dataclass
class ModelComparison:
    """What ``compare_model`` found.

    Attributes:
        found: The differences; the other model is the reference.
        missing: What one side has and the other must have, too, and has not.
        notes: What was not compared, and how inputs were matched.
    """

    found: Comparison
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def compare_model(
    net: Net, other: Other, inputs: Mapping[str, Any], *, parameters: bool = True
) -> ModelComparison:
    """Run a net and another model on the same inputs, and compare blobs and parameters.

    Both are matched by name, else by order, shape and operation; ``Difference.what`` says which.
    The net itself is left alone: a copy runs, layer by layer.

    Args:
        net: The net, with its weights.
        other: The other model.
        inputs: An array for each net input.
        parameters: Whether parameters are compared, too.

    Raises:
        NetError: The other model's inputs are not the net's, or nothing could be matched.
    """
    device = str(net.device)
    result = ModelComparison(Comparison(other.name, [device]))
    code = result.found.code
    found = run_net(net, net.device, inputs, backward=False, look=True, code=code)
    sources = {one.wrote[0]: one.array for one in found if not one.read}
    ours = [one for one in found if one.read and one.type not in NO_COUNTERPART]
    theirs = other.run(_given(sources, other, result.notes))
    kinds = kinds_of_layers(net)
    mine = [Item((one.layer, one.wrote[0]), one.array.shape, kinds[one.layer]) for one in ours]
    yours = [Item(one.names, one.array.shape, one.kind) for one in theirs]
    pairs = by_name(mine, yours)
    named = set(pairs)
    pairs |= _outputs(net, mine, yours, other.outputs, pairs)
    if other.ordered:
        pairs |= align(mine, yours, pairs)
    code[other.name] = {ours[i].layer: theirs[j].operation for i, j in pairs.items()}
    last = dict.fromkeys(sources, 0.0)  # blob -> how far its newest value is off
    number = -1
    for one in found:
        # unless all that a layer reads has been compared, nobody knows whether it agrees
        read = [last[name] for name in one.read if name in last]
        known = max(read) if read and len(read) == len(one.read) else None
        [blob] = one.wrote
        if one.type in NO_COUNTERPART and known is not None:
            last[blob] = known
        if not one.read or one.type in NO_COUNTERPART:
            continue
        number += 1
        last.pop(blob, None)
        if number not in pairs:
            result.notes.append(f"not compared: layer {one.layer!r} ({one.type}), {one.what}")
            continue
        value = theirs[pairs[number]]
        apart = gap(*_alike(one.array, value.array))
        how = "name" if number in named else "order"
        what = f"{one.what} with {value.names[0]!r} by {how}"
        result.found.differences.append(Difference(one.layer, one.type, what, device, apart, known))
        last[blob] = apart.relative
    if parameters:
        _compare_parameters(net, other.parameters(), result)
    if not result.found.differences:
        message = f"nothing of {other.name} has the name or the shape of one of the net's blobs"
        raise NetError(message, code=ErrorCode.INCOMPATIBLE)
    return result


def _given(
    sources: Mapping[str, np.ndarray], other: Other, notes: list[str]
) -> dict[str, np.ndarray]:
    """Return the other model's inputs: by name, else those of the same shape, by order.

    Raises:
        NetError: There is none for one of them.
    """
    wanted = other.inputs()
    given = {name: sources[name] for name in wanted if name in sources}
    rest = [name for name in sources if name not in given]
    for name, shape in wanted.items():
        if name not in given:
            fits = next((one for one in rest if _fits(sources[one].shape, shape)), None)
            if fits is None:
                have = ", ".join(f"{one} {array.shape}" for one, array in sources.items())
                message = f"{other.name} has an input {name!r} of shape {shape}, the net has {have}"
                raise NetError(message, code=ErrorCode.INCOMPATIBLE, input=name)
            rest.remove(fits)
            given[name] = sources[fits]
            notes.append(f"the net's {fits!r} is the input {name!r} of {other.name}, by order")
        elif not _fits(given[name].shape, shape):
            message = (
                f"input {name!r} is {given[name].shape} in the net and {shape} in {other.name}; "
                "give both the same batch and size"
            )
            raise NetError(
                message,
                code=ErrorCode.SHAPE_MISMATCH,
                input=name,
                got=given[name].shape,
                expected=shape,
            )
    return given


def _fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(shape) == len(wanted) and all(
        b is None or a == b for a, b in zip(shape, wanted, strict=True)
    )


def _outputs(
    net: Net,
    ours: Sequence[Item],
    theirs: Sequence[Item],
    outputs: Sequence[str],
    pairs: Mapping[int, int],
) -> dict[int, int]:
    """Return the pair of the outputs where each model has one: results are always compared."""
    if len(net.outputs) != 1 or len(outputs) != 1:
        return {}
    mine = [i for i, item in enumerate(ours) if item.names[1] == net.outputs[0]][-1:]
    yours = [j for j, item in enumerate(theirs) if outputs[0] in item.names][-1:]
    return {
        i: j
        for i, j in zip(mine, yours, strict=False)
        if i not in pairs and j not in pairs.values() and same_shape(ours[i].shape, theirs[j].shape)
    }


def _alike(mine: np.ndarray, yours: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both in one type of numbers, and in one shape where only axes of 1 differ."""
    yours = yours.astype(mine.dtype)
    if same_shape(mine.shape, yours.shape):
        yours = yours.reshape(mine.shape)
    return mine, yours


def _compare_parameters(net: Net, theirs: Sequence[Parameter], result: ModelComparison) -> None:
    """Compare parameters by what they are for and by order: names differ between frameworks."""
    ours = [(layer, i, role, array) for layer, i, role, array in _parameters(net) if role]
    pairs: dict[int, int] = {}
    for role in dict.fromkeys(role for _, _, role, _ in ours):
        mine = [k for k, one in enumerate(ours) if one[2] == role]
        yours = [j for j, one in enumerate(theirs) if one.role == role]
        found = align(
            [Item((), ours[k][3].shape) for k in mine],
            [Item((), theirs[j].array.shape) for j in yours],
        )
        pairs |= {mine[a]: yours[b] for a, b in found.items()}
    device = str(net.device)
    for k, (layer, i, _, array) in enumerate(ours):
        if k not in pairs:
            if theirs:
                result.notes.append(f"not compared: layer {layer.name!r}, parameter {i}")
            continue
        other = theirs[pairs[k]]
        apart = gap(*_alike(array, other.array))
        what = f"parameter {i} with {other.name!r} by order"
        result.found.differences.append(Difference(layer.name, layer.type, what, device, apart))


def _parameters(net: Net) -> list[tuple[Any, int, str, np.ndarray]]:
    """Return layer, number, role and array of every parameter; averages of BatchNorm divided."""
    found = []
    for layer in net.layers:
        roles = PARAMETER_ROLES.get(layer.type, ())
        arrays = [blob.cpu_data() for blob in layer.blobs]
        if layer.type == "BatchNorm" and len(arrays) == 3:
            factor = float(arrays[2].ravel()[0])
            arrays = [array / factor if factor else array * 0 for array in arrays[:2]]
        for i, (array, role) in enumerate(zip(arrays, roles, strict=False)):
            found.append((layer, i, role, array))
    return found


def compare_weights(
    net: Net, other: str, weights: Mapping[str, Mapping[int, np.ndarray]], *, values: bool = True
) -> ModelComparison:
    """Compare a net's parameters with stored ones, layer by layer and number by number.

    Args:
        net: The net, with its weights.
        other: What the stored ones are called: the file's name.
        weights: For each layer its parameters by their numbers.
        values: Whether values are compared, and not presence and shapes alone.
    """
    device = str(net.device)
    result = ModelComparison(Comparison(other, [device]))
    for layer in net.layers:
        stored = weights.get(layer.name, {})
        if layer.blobs and not stored:
            result.missing.append(f"layer {layer.name!r} ({layer.type}) is not in {other}")
            continue
        for i in sorted({*range(len(layer.blobs)), *stored}):
            if i >= len(layer.blobs) or i not in stored:
                where = other if i < len(layer.blobs) else "the net"
                result.missing.append(f"layer {layer.name!r}: {where} has no parameter {i}")
                continue
            mine, yours = layer.blobs[i].cpu_data(), stored[i]
            if not same_shape(mine.shape, yours.shape):
                result.missing.append(
                    f"layer {layer.name!r}, parameter {i}: {mine.shape} in the net, {yours.shape} "
                    f"in {other}"
                )
            elif values:
                apart = gap(*_alike(mine, yours))
                result.found.differences.append(
                    Difference(layer.name, layer.type, f"parameter {i}", device, apart)
                )
    names = set(net.layer_names)
    result.missing += [f"{other} has a layer {n!r}, the net has none" for n in weights
                       if n not in names]  # fmt: skip
    return result

"""Comparison of a net with a model of another framework, another net, or recorded blobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from demitasse.errors import ErrorCode, NetError
from demitasse.net import Net
from demitasse.testing.comparison import Comparison, run_net
from demitasse.testing.error_stats import Difference, error_stats
from demitasse.testing.reference import Parameter, ReferenceModel
from demitasse.testing.reference.model import ROLES, kinds_of_layers

PARAMETER_ROLES = ROLES | {"BatchNorm": ("mean", "variance", ""), "Scale": ("scale", "shift")}
"""Layer type -> roles of its parameters."""

NO_COUNTERPART = {"Split"}
"""Types of layers that nets insert, and that no file contains."""


@dataclass
class ModelComparison:
    """Result of ``compare_model``.

    Attributes:
        found: The differences from the reference model.
        missing: Layers and parameters that one side lacks, and arrays of other shapes.
        notes: Arrays that were not compared, and inputs matched by order.
    """

    found: Comparison
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def compare_model(
    net: Net, other: ReferenceModel, inputs: Mapping[str, Any], *, parameters: bool = True
) -> ModelComparison:
    """Run a net and a reference model on the same inputs; compare blobs and parameters.

    Arrays are matched by name, or else by order, shape and operation; ``Difference.what`` states
    which. A copy of the net runs, layer by layer. ``inputs`` has an array for each net input.

    Raises:
        NetError: The inputs of the two models do not match, or no blob does.
    """
    device = str(net.device)
    result = ModelComparison(Comparison(other.name, [device]))
    code = result.found.code
    found = run_net(net, net.device, inputs, backward=False, by_layer=True, code=code)
    sources = {one.wrote[0]: one.array for one in found if not one.read}
    ours = [one for one in found if one.read and one.type not in NO_COUNTERPART]
    theirs = other.run(_match_inputs(sources, other, result.notes))
    kinds = kinds_of_layers(net)
    mine = [Item((one.layer, one.wrote[0]), one.array.shape, kinds[one.layer]) for one in ours]
    yours = [Item(one.names, one.array.shape, one.kind) for one in theirs]
    pairs = by_name(mine, yours)
    named = set(pairs)
    pairs |= _outputs(net, mine, yours, other.outputs, pairs)
    if other.ordered:
        pairs |= align(mine, yours, pairs)
    code[other.name] = {ours[i].layer: theirs[j].operation for i, j in pairs.items()}
    errors = dict.fromkeys(sources, 0.0)  # blob -> relative error of its present value
    number = -1
    for one in found:
        read = [errors[name] for name in one.read if name in errors]
        known = max(read) if read and len(read) == len(one.read) else None
        [blob] = one.wrote
        if one.type in NO_COUNTERPART and known is not None:
            errors[blob] = known
        if not one.read or one.type in NO_COUNTERPART:
            continue
        number += 1
        errors.pop(blob, None)
        if number not in pairs:
            result.notes.append(f"not compared: layer {one.layer!r} ({one.type}), {one.what}")
            continue
        value = theirs[pairs[number]]
        if not same_shape(one.array.shape, value.array.shape):
            result.missing.append(
                f"layer {one.layer!r}, {one.what}: {one.array.shape} in the net, "
                f"{value.array.shape} in {other.name}"
            )
        stats = error_stats(*_alike(one.array, value.array))
        how = "name" if number in named else "order"
        what = f"{one.what} with {value.names[0]!r} by {how}"
        result.found.differences.append(Difference(one.layer, one.type, what, device, stats, known))
        errors[blob] = stats.relative
    if parameters:
        _compare_parameters(net, other.parameters(), result)
    if not result.found.differences:
        message = f"no array of {other.name} has the name or the shape of a blob of the net"
        raise NetError(message, code=ErrorCode.INCOMPATIBLE)
    return result


def _match_inputs(
    sources: Mapping[str, np.ndarray], other: ReferenceModel, notes: list[str]
) -> dict[str, np.ndarray]:
    """Return the inputs of the reference model: by name, or else by shape and order."""
    wanted = other.inputs()
    given = {name: sources[name] for name in wanted if name in sources}
    rest = [name for name in sources if name not in given]
    for name, shape in wanted.items():
        if name not in given:
            fits = next((one for one in rest if _fits(sources[one].shape, shape)), None)
            if fits is None:
                have = ", ".join(f"{one} {array.shape}" for one, array in sources.items())
                message = (
                    f"no input of the net fits input {name!r} of {other.name}: got {have}, "
                    f"expected shape {shape}"
                )
                raise NetError(message, code=ErrorCode.INCOMPATIBLE, input=name)
            rest.remove(fits)
            given[name] = sources[fits]
            notes.append(f"the net's {fits!r} is the input {name!r} of {other.name}, by order")
        elif not _fits(given[name].shape, shape):
            message = (
                f"input {name!r}: got shape {given[name].shape} in the net, expected {shape} of "
                f"{other.name}; use the same batch and size"
            )
            details = {"input": name, "got": given[name].shape, "expected": shape}
            raise NetError(message, code=ErrorCode.SHAPE_MISMATCH, **details)
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
    """Return the pair of the outputs if each model has one output."""
    if len(net.outputs) != 1 or len(outputs) != 1:
        return {}
    mine = [i for i, item in enumerate(ours) if item.names[1] == net.outputs[0]]
    yours = [j for j, item in enumerate(theirs) if outputs[0] in item.names]
    if not mine or not yours or mine[-1] in pairs or yours[-1] in pairs.values():
        return {}
    i, j = mine[-1], yours[-1]
    return {i: j} if same_shape(ours[i].shape, theirs[j].shape) else {}


def _alike(mine: np.ndarray, yours: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both arrays in one dtype, and in one shape if only axes of 1 differ."""
    yours = yours.astype(mine.dtype)
    if same_shape(mine.shape, yours.shape):
        yours = yours.reshape(mine.shape)
    return mine, yours


def _compare_parameters(net: Net, theirs: Sequence[Parameter], result: ModelComparison) -> None:
    """Compare parameters by role and order, as names differ between frameworks."""
    ours = _parameters(net)
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
        stats = error_stats(*_alike(array, other.array))
        what = f"parameter {i} with {other.name!r} by order"
        result.found.differences.append(Difference(layer.name, layer.type, what, device, stats))


def _parameters(net: Net) -> list[tuple[Any, int, str, np.ndarray]]:
    """Return layer, index, role and array of parameters; averages of BatchNorm are divided."""
    found = []
    for layer in net.layers:
        roles = PARAMETER_ROLES.get(layer.type, ())
        arrays = [blob.cpu_data() for blob in layer.blobs]
        if layer.type == "BatchNorm" and len(arrays) == 3:
            factor = float(arrays[2].ravel()[0])
            arrays = [array / factor if factor else array * 0 for array in arrays[:2]]
        found += [(layer, i, *pair) for i, pair in enumerate(zip(roles, arrays, strict=False))]
    return [one for one in found if one[2]]


def compare_weights(
    net: Net, other: str, weights: Mapping[str, Mapping[int, np.ndarray]], *, values: bool = True
) -> ModelComparison:
    """Compare the parameters of a net with stored ones, by layer name and index.

    Args:
        net: The net, with its weights.
        other: Name of the stored parameters: the file's name.
        weights: Layer -> index -> parameter.
        values: Compare values; False compares presence and shapes alone.
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
                stats, what = error_stats(*_alike(mine, yours)), f"parameter {i}"
                found = Difference(layer.name, layer.type, what, device, stats)
                result.found.differences.append(found)
    for name in weights:
        if not net.has_layer(name):
            result.missing.append(f"{other} has a layer {name!r}, the net has none")
    return result


# -- matching of arrays ------------------------------------------------------------------------

NEVER = -1


@dataclass(frozen=True)
class Item:
    """An array to match."""

    names: tuple[str, ...]  # the most specific one first
    shape: tuple[int, ...]
    kind: str = ""  # layer type that computes the array; empty if unknown


def same_shape(one: Sequence[int], other: Sequence[int]) -> bool:
    """Return True if shapes are equal without their axes of 1."""
    return [size for size in one if size != 1] == [size for size in other if size != 1]


def by_name(ours: Sequence[Item], theirs: Sequence[Item]) -> dict[int, int]:
    """Return pairs of indices (of our items, of the others) with equal names.

    Our items are named by layer (``names[0]``) and blob (``names[1]``). Several arrays can have the
    name of one blob, if layers write it in place. Each array is matched by its layer's name if all
    layers have a counterpart, or else the last one by the blob's name.
    """
    called: dict[str, int] = {}
    for level in range(max((len(item.names) for item in theirs), default=0)):
        at_level = {t.names[level]: j for j, t in enumerate(theirs) if level < len(t.names)}
        called = at_level | called  # more specific names win; of equal ones the last
    writers: dict[str, list[int]] = {}
    for i, item in enumerate(ours):
        writers.setdefault(item.names[1], []).append(i)
    found: dict[int, int] = {}
    for blob, numbers in writers.items():
        layers = [ours[i].names[0] for i in numbers]
        if all(layer in called for layer in layers) and len({called[n] for n in layers}) > 1:
            found |= {i: called[name] for i, name in zip(numbers, layers, strict=True)}
        elif blob in called:
            found[numbers[-1]] = called[blob]
        elif layers[-1] in called:
            found[numbers[-1]] = called[layers[-1]]
    last = {j: i for i, j in found.items()}  # of pairs with the same second item
    return {i: j for j, i in last.items()}


def align(
    ours: Sequence[Item], theirs: Sequence[Item], pairs: dict[int, int] | None = None
) -> dict[int, int]:
    """Match the remaining items by order; return the new pairs.

    The pairs are the longest common subsequence of equal shapes. Items of different known kinds do
    not match; items of equal kinds score twice. Among equal scores, later items match: a bias is
    added after the product. Items are in the order of computation; ``pairs`` are fixed.
    """
    fixed = dict(pairs or {})
    score = np.full((len(ours), len(theirs)), NEVER, np.int64)
    taken = set(fixed.values())
    anchor = 2 * (len(ours) + len(theirs)) + 1  # above the sum of all other scores
    for i, one in enumerate(ours):
        if i in fixed:
            score[i, fixed[i]] = anchor
            continue
        for j, other in enumerate(theirs):
            if j in taken or not same_shape(one.shape, other.shape):
                continue
            if one.kind and other.kind:
                score[i, j] = 2 if one.kind == other.kind else NEVER
            else:
                score[i, j] = 1
    found = _longest(score)
    return {i: j for i, j in found.items() if i not in fixed}


def _longest(score: np.ndarray) -> dict[int, int]:
    """Return the increasing pairs (row, column) with the largest sum of scores.

    Shape: (rows, columns); ``NEVER`` marks forbidden pairs.
    """
    rows, columns = score.shape
    best = np.zeros((rows + 1, columns + 1), np.int64)
    for i in range(rows):
        with_pair = np.where(score[i] > 0, best[i, :-1] + score[i], 0)
        best[i + 1, 1:] = np.maximum.accumulate(np.maximum(best[i, 1:], with_pair))
    found: dict[int, int] = {}
    i, j = rows, columns
    while i and j:
        value = score[i - 1, j - 1]
        if value > 0 and best[i, j] == best[i - 1, j - 1] + value:
            i, j = i - 1, j - 1
            found[i] = j
        elif best[i, j] == best[i, j - 1]:
            j -= 1
        else:
            i -= 1
    return found

"""Comparison of an exported model, run by its framework, with the net."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from demitasse.errors import ConfigError, ErrorCode, ShapeError
from demitasse.interop.export.layer_graph import LayerGraph, Value, is_identity
from demitasse.interop.export.sizes import STRIDE, SymbolicSize
from demitasse.net import Net
from demitasse.testing.comparison import Comparison, random_inputs, run_net
from demitasse.testing.error_stats import Difference, error_stats

if TYPE_CHECKING:
    from demitasse.interop.onnx_export.model import Preprocess

MORE_PIXELS = 13
"""Pixels added to images of symbolic size: no multiple of a stride, if the net allows it."""

SMALL_BATCH = 2
"""Items of a random batch of symbolic size."""

Arrays = Mapping[str, np.ndarray]

Runner = Callable[[Arrays, Sequence[str], bool], Arrays]
"""Function that runs an exported model: (inputs, names of values, fused) -> values by name.

Returns all requested values, or with fused layers the outputs alone. Raises a DataError if the
framework cannot run the model.
"""


def check_export(
    runtime: str,
    run: Runner,
    net: Net,
    layers: LayerGraph,
    preprocess: Preprocess | None = None,
    inputs: Arrays | None = None,
    seed: int = 0,
) -> Comparison:
    """Run an exported model and its net on the same inputs, by default random ones.

    Compares every value without fusion; then the outputs with all optimizations; and for symbolic
    sizes also the outputs of larger inputs.

    Raises:
        ConfigError: An input has no array.
    """
    device = str(net.device)
    result = Comparison(device, [runtime])

    def net_inputs(arrays: Arrays) -> dict[str, np.ndarray]:
        if preprocess is None:
            return dict(arrays)
        image = preprocess.chosen(layers.inputs).name
        return {**arrays, image: preprocess.applied(arrays[image])}

    def compare_outputs(arrays: Arrays, suffix: str) -> None:
        """Add the differences of the outputs with fused layers."""
        ours = run_net(net, net.device, net_inputs(arrays), backward=False, by_layer=False, code={})
        found = {one.wrote[0]: one for one in ours}
        blobs = {name: name if name in found else one.blob for name, one in layers.outputs.items()}
        outputs = {name: found[blob] for name, blob in blobs.items() if blob in found}
        theirs = run(arrays, list(outputs), True)
        result.fused += [
            Difference(one.layer, one.type, f"output {name!r}, fused layers{suffix}", runtime,
                       error_stats(theirs[name], one.array))
            for name, one in outputs.items()
        ]  # fmt: skip

    def larger(pixels: int) -> Arrays:
        return {value.name: _larger(given[value.name], value, pixels) for value in layers.inputs}

    given = _random(net, layers, preprocess, seed) if inputs is None else inputs
    names = [value.name for value in layers.inputs]
    if not set(names) <= set(given):
        message = f"got arrays for {sorted(given)}, expected one for each of the inputs {names}"
        raise ConfigError(
            message, code=ErrorCode.MISSING, field="inputs", got=list(given), expected=names
        )
    ours = run_net(
        net, net.device, net_inputs(given), backward=False, by_layer=True, code=result.code
    )
    theirs = run(given, [value.name for value in layers.values.values()], False)
    keys = [
        (index, number)
        for index in range(len(net.layers))
        for number in range(len(net.structure.top_ids(index)))
    ]
    errors: dict[str, float] = {}  # blob -> relative error of its present value
    for key, one in zip(keys, ours, strict=True):
        value = layers.values.get(key)
        if value is None or value in layers.inputs or is_identity(net.layers[key[0]]):
            continue
        stats = error_stats(theirs[value.name], one.array)
        read = [errors[name] for name in one.read if name in errors]
        what = f"top {value.blob!r}" + ("" if value.name == value.blob else f" as {value.name!r}")
        result.differences.append(
            Difference(one.layer, one.type, what, runtime, stats, max(read, default=None))
        )
        errors[one.wrote[0]] = stats.relative
    compare_outputs(given, "")
    if any(value.is_symbolic for value in layers.inputs):
        try:
            compare_outputs(larger(MORE_PIXELS), ", larger input")
        except ShapeError:  # the net needs a multiple of its strides, as U-Nets do
            compare_outputs(larger(STRIDE), ", larger input")
    return result


def _random(net: Net, layers: LayerGraph, preprocess: Preprocess | None, seed: int) -> Arrays:
    """Return random inputs of the model, with a small batch where its size is symbolic."""
    arrays = random_inputs(net, seed)
    for value in layers.inputs:
        if value.sizes and isinstance(value.sizes[0], SymbolicSize):
            arrays[value.name] = arrays[value.name][:SMALL_BATCH]
    if preprocess is not None:
        image = preprocess.chosen(layers.inputs).name
        dtype = np.uint8 if preprocess.uint8 else np.float32
        random = np.random.default_rng(seed)
        arrays[image] = random.integers(0, 256, arrays[image].shape).astype(dtype)
    return arrays


def _larger(array: np.ndarray, value: Value, pixels: int) -> np.ndarray:
    """Return an input with one more item, and more rows and columns, where sizes are symbolic."""
    for axis, size in enumerate(value.sizes):
        if isinstance(size, SymbolicSize):
            count = array.shape[axis] + (1 if axis == 0 else pixels)
            array = np.take(array, range(count), axis=axis, mode="wrap")
    return array

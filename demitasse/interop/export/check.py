"""Comparison of an exported model, run by its framework, with the net."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from demitasse.interop.export.layer_graph import LayerGraph, Value, is_identity
from demitasse.interop.export.sizes import SymbolicSize
from demitasse.net import Net
from demitasse.testing.comparison import Comparison, random_inputs, run_net
from demitasse.testing.error_stats import Difference, error_stats

MORE_PIXELS = 13
"""Pixels added to images of symbolic size: no multiple of any stride."""

SMALL_BATCH = 2
"""Items of a random batch of symbolic size."""

Arrays = Mapping[str, np.ndarray]


class Runner(Protocol):
    """Runs the exported model."""

    def __call__(self, given: Arrays, names: Sequence[str], *, fused: bool) -> Arrays:
        """Return values by name: all requested ones, or with ``fused`` the outputs alone.

        Raises:
            DataError: The framework cannot run the model.
        """


class ImagePreprocessing(Protocol):
    """Preprocessing of images inside the exported model."""

    @property
    def uint8(self) -> bool:
        """True if the model takes images as uint8."""

    def chosen(self, inputs: Sequence[Value]) -> Value:
        """Return the input that takes images."""

    def applied(self, images: np.ndarray) -> np.ndarray:
        """Return preprocessed images, as inputs of the net."""


def check_export(
    runtime: str,
    run: Runner,
    net: Net,
    layers: LayerGraph,
    preprocess: ImagePreprocessing | None = None,
    inputs: Arrays | None = None,
    seed: int = 0,
) -> Comparison:
    """Run an exported model and its net on the same inputs.

    Compares every value without fusion; then the outputs with all optimizations; and for symbolic
    sizes also the outputs of larger inputs.

    Args:
        runtime: Name of the framework.
        run: Runs the model.
        net: The net, with its weights.
        layers: Layer graph that the model was converted from.
        preprocess: Preprocessing of images inside the model.
        inputs: An array for each input of the model; None for random ones.
        seed: Seed of random inputs.

    Raises:
        DataError: The framework cannot run the model.
    """
    device = str(net.device)
    result = Comparison(device, [runtime])
    given = _random(net, layers, preprocess, seed) if inputs is None else dict(inputs)
    ours = run_net(
        net, net.device, _net_inputs(layers, preprocess, given), backward=False, by_layer=True,
        code=result.code,
    )  # fmt: skip
    theirs = run(given, [value.name for value in layers.values.values()], fused=False)
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
    result.fused += _compare_outputs(runtime, run, net, layers, preprocess, given, "")
    if any(isinstance(size, SymbolicSize) for value in layers.inputs for size in value.sizes):
        larger = {value.name: _larger(given[value.name], value) for value in layers.inputs}
        result.fused += _compare_outputs(
            runtime, run, net, layers, preprocess, larger, ", larger input"
        )
    return result


def _compare_outputs(
    runtime: str,
    run: Runner,
    net: Net,
    layers: LayerGraph,
    preprocess: ImagePreprocessing | None,
    given: Arrays,
    suffix: str,
) -> list[Difference]:
    """Return the differences of the outputs with fused layers."""
    ours = run_net(
        net, net.device, _net_inputs(layers, preprocess, given), backward=False, by_layer=False,
        code={},
    )  # fmt: skip
    found = {one.wrote[0]: one for one in ours}
    blobs = {name: name if name in found else one.blob for name, one in layers.outputs.items()}
    outputs = {name: found[blob] for name, blob in blobs.items() if blob in found}
    theirs = run(given, list(outputs), fused=True)
    return [
        Difference(one.layer, one.type, f"output {name!r}, fused layers{suffix}", runtime,
                   error_stats(theirs[name], one.array))
        for name, one in outputs.items()
    ]  # fmt: skip


def _random(
    net: Net, layers: LayerGraph, preprocess: ImagePreprocessing | None, seed: int
) -> Arrays:
    """Return random inputs of the model, with a small batch where its size is symbolic."""
    arrays = random_inputs(net, seed)
    for value in layers.inputs:
        if value.sizes and isinstance(value.sizes[0], SymbolicSize):
            arrays[value.name] = arrays[value.name][:SMALL_BATCH]
    if preprocess is not None:
        image = preprocess.chosen(layers.inputs)
        dtype = np.uint8 if preprocess.uint8 else np.float32
        random = np.random.default_rng(seed)
        arrays[image.name] = random.integers(0, 256, arrays[image.name].shape).astype(dtype)
    return arrays


def _net_inputs(
    layers: LayerGraph, preprocess: ImagePreprocessing | None, given: Arrays
) -> dict[str, np.ndarray]:
    """Return the inputs of the net for these inputs of the model."""
    arrays = dict(given)
    if preprocess is not None:
        name = preprocess.chosen(layers.inputs).name
        arrays[name] = preprocess.applied(arrays[name])
    return arrays


def _larger(array: np.ndarray, value: Value) -> np.ndarray:
    """Return an input with one more item, and more rows and columns, where sizes are symbolic."""
    for axis, size in enumerate(value.sizes):
        if isinstance(size, SymbolicSize):
            count = array.shape[axis] + (1 if axis == 0 else MORE_PIXELS)
            array = np.take(array, range(count), axis=axis, mode="wrap")
    return array

"""Hold a file that was written against the net, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from demitasse.interop.export.sizes import Free
from demitasse.interop.export.walk import Value, Walk, passes_on
from demitasse.net import Net
from demitasse.testing.comparison import Comparison, run_net
from demitasse.testing.differences import Difference, gap
from demitasse.testing.inputs import random_inputs

__all__ = ["Arrays", "Images", "Run", "check_written"]

MORE_PIXELS = 13
"""By how much images are larger where their size is free: no multiple of any stride."""

FEW = 2
"""Items of a random batch whose size is free."""

Arrays = Mapping[str, np.ndarray]


class Run(Protocol):
    """Runs the file that was written."""

    def __call__(self, given: Arrays, names: Sequence[str], *, fused: bool) -> Arrays:
        """Return values by their names: all that are asked for, or with ``fused`` outputs alone.

        Raises:
            DataError: The file cannot be run.
        """


class Images(Protocol):
    """What the file does to images before the net sees them."""

    @property
    def uint8(self) -> bool:
        """Whether they come as whole numbers."""

    def chosen(self, inputs: Sequence[Value]) -> Value:
        """Return the input that is images."""

    def applied(self, images: np.ndarray) -> np.ndarray:
        """Return what the net sees."""


def check_written(
    runtime: str,
    run: Run,
    net: Net,
    walk: Walk,
    how: Images | None = None,
    inputs: Arrays | None = None,
    seed: int = 0,
) -> Comparison:
    """Run a file by another framework, and the net, on the same inputs.

    Every value is compared, nothing being fused; then the outputs, with all that the framework
    makes faster; and where sizes are free, the outputs of larger inputs.

    Args:
        runtime: Name of the framework.
        run: Runs the file.
        net: The net, with its weights.
        walk: Which value is called what in the file.
        how: What the file does to images first.
        inputs: An array for each input of the file; None for random ones.
        seed: What random ones are made from.

    Raises:
        DataError: The framework cannot run the file.
    """
    device = str(net.device)
    result = Comparison(device, [runtime])
    given = _random(net, walk, how, seed) if inputs is None else dict(inputs)
    ours = run_net(net, net.device, _as_net_wants(walk, how, given), backward=False, look=True,
                   code=result.code)  # fmt: skip
    names = [value.name for value in walk.values.values()]
    theirs = run(given, names, fused=False)
    where = [
        (index, number)
        for index, layer in enumerate(net.layers)
        for number in range(len(net.structure.top_ids(index)))
    ]
    off: dict[str, float] = {}
    for key, one in zip(where, ours, strict=True):
        value = walk.values.get(key)
        if value is None or value in walk.inputs or passes_on(net.layers[key[0]]):
            continue
        apart = gap(theirs[value.name], one.array)
        read = [off[name] for name in one.read if name in off]
        known = max(read) if read else None
        what = f"top {value.blob!r}" + ("" if value.name == value.blob else f" as {value.name!r}")
        result.differences.append(Difference(one.layer, one.type, what, runtime, apart, known))
        off[one.wrote[0]] = apart.relative
    result.together += _outputs(runtime, run, net, walk, how, given, "")
    if any(isinstance(size, Free) for value in walk.inputs for size in value.sizes):
        larger = {value.name: _larger(given[value.name], value) for value in walk.inputs}
        result.together += _outputs(runtime, run, net, walk, how, larger, ", larger input")
    return result


def _outputs(
    runtime: str, run: Run, net: Net, walk: Walk, how: Images | None, given: Arrays, with_: str
) -> list[Difference]:
    """Return how far the outputs are apart where layers run as one."""
    ours = run_net(net, net.device, _as_net_wants(walk, how, given), backward=False, look=False,
                   code={})  # fmt: skip
    found = {one.what.split("'")[1]: one for one in ours}
    blobs = {name: name if name in found else one.blob for name, one in walk.outputs.items()}
    outputs = {name: found[blob] for name, blob in blobs.items() if blob in found}
    theirs = run(given, list(outputs), fused=True)
    return [
        Difference(one.layer, one.type, f"output {name!r}, layers run as one{with_}", runtime,
                   gap(theirs[name], one.array))
        for name, one in outputs.items()
    ]  # fmt: skip


def _random(net: Net, walk: Walk, how: Images | None, seed: int) -> Arrays:
    """Return random inputs, of which the images are what the file takes; few where that is free."""
    arrays = random_inputs(net, seed)
    for value in walk.inputs:
        if value.sizes and isinstance(value.sizes[0], Free):
            arrays[value.name] = arrays[value.name][:FEW]
    if how is not None:
        image = how.chosen(walk.inputs)
        kind = np.uint8 if how.uint8 else np.float32
        random = np.random.default_rng(seed)
        arrays[image.name] = random.integers(0, 256, arrays[image.name].shape).astype(kind)
    return arrays


def _as_net_wants(walk: Walk, how: Images | None, given: Arrays) -> dict[str, np.ndarray]:
    """Return the inputs of the net itself."""
    arrays = dict(given)
    if how is not None:
        name = how.chosen(walk.inputs).name
        arrays[name] = how.applied(arrays[name])
    return arrays


def _larger(array: np.ndarray, value: Value) -> np.ndarray:
    """Return an input with one item more, and images with some more rows and columns."""
    for axis, size in enumerate(value.sizes):
        if isinstance(size, Free):
            count = array.shape[axis] + (1 if axis == 0 else MORE_PIXELS)
            array = np.take(array, range(count), axis=axis, mode="wrap")
    return array

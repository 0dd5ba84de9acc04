"""Hold a file that was written against the net, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from demitasse.errors import DataError
from demitasse.export.onnx.library import library
from demitasse.export.onnx.preprocess import Preprocess
from demitasse.export.sizes import Free
from demitasse.export.walk import Value, Walk, passes_on
from demitasse.net import Net
from demitasse.testing.comparison import Comparison, run_net
from demitasse.testing.differences import Difference, gap
from demitasse.testing.inputs import random_inputs

__all__ = ["check_file"]

RUNTIME = "onnxruntime"

TYPES = {"tensor(float)": np.float32, "tensor(uint8)": np.uint8}
"""What inputs are of."""

MORE_PIXELS = 13
"""By how much images are larger where their size is free: no multiple of any stride."""

FEW = 2
"""Items of a random batch whose size is free."""

Arrays = Mapping[str, np.ndarray]


def check_file(
    path: Path,
    net: Net,
    walk: Walk,
    how: Preprocess | None = None,
    inputs: Arrays | None = None,
    seed: int = 0,
) -> Comparison:
    """Run a file by ONNX Runtime, and the net, on the same inputs.

    Every value is compared, nothing being fused; then the outputs, with all that ONNX Runtime makes
    faster; and where sizes are free, the outputs of larger inputs.

    Args:
        path: The file.
        net: The net, with its weights.
        walk: Which value is called what in the file.
        how: What the file does to images first.
        inputs: An array for each input of the file; None for random ones.
        seed: What random ones are made from.

    Raises:
        DataError: ONNX Runtime cannot load the file, or not run it.
    """
    device = str(net.device)
    result = Comparison(device, [RUNTIME])
    given = _random(net, walk, how, seed) if inputs is None else dict(inputs)
    ours = run_net(net, net.device, _as_net_wants(walk, how, given), backward=False, look=True,
                   code=result.code)  # fmt: skip
    names = [value.name for value in walk.values.values()]
    theirs = _run(path, given, names, fused=False)
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
        result.differences.append(Difference(one.layer, one.type, what, RUNTIME, apart, known))
        off[one.wrote[0]] = apart.relative
    result.together += _outputs(path, net, walk, how, given, "")
    if any(isinstance(size, Free) for value in walk.inputs for size in value.sizes):
        larger = {value.name: _larger(given[value.name], value) for value in walk.inputs}
        result.together += _outputs(path, net, walk, how, larger, ", larger input")
    return result


def _outputs(
    path: Path, net: Net, walk: Walk, how: Preprocess | None, given: Arrays, with_: str
) -> list[Difference]:
    """Return how far the outputs are apart where layers run as one."""
    ours = run_net(net, net.device, _as_net_wants(walk, how, given), backward=False, look=False,
                   code={})  # fmt: skip
    found = {one.what.split("'")[1]: one for one in ours}
    blobs = {name: name if name in found else one.blob for name, one in walk.outputs.items()}
    outputs = {name: found[blob] for name, blob in blobs.items() if blob in found}
    theirs = _run(path, given, list(outputs), fused=True)
    return [
        Difference(one.layer, one.type, f"output {name!r}, layers run as one{with_}", RUNTIME,
                   gap(theirs[name], one.array))
        for name, one in outputs.items()
    ]  # fmt: skip


def _random(net: Net, walk: Walk, how: Preprocess | None, seed: int) -> Arrays:
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


def _as_net_wants(walk: Walk, how: Preprocess | None, given: Arrays) -> dict[str, np.ndarray]:
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


def _run(path: Path, given: Arrays, names: list[str], *, fused: bool) -> dict[str, np.ndarray]:
    """Return values that ONNX Runtime computes.

    Raises:
        DataError: It cannot.
    """
    onnx, runtime = library("onnx"), library("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    model: Any = str(path)
    if not fused:
        levels = runtime.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_DISABLE_ALL
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(path.resolve().parent)
        )
        model = _with_outputs(onnx.load(str(path), load_external_data=False), names)
    try:
        session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        arrays = {one.name: np.asarray(given[one.name], TYPES[one.type])
                  for one in session.get_inputs()}  # fmt: skip
        there = {one.name for one in session.get_outputs()}
        asked = [name for name in dict.fromkeys(names) if name in there]
        found = session.run(asked, arrays) if asked else []
    except Exception as error:  # the library's exceptions have no common base
        message = f"ONNX Runtime cannot run it: {error}"
        raise DataError(message, str(path)) from error
    return dict(zip(asked, found, strict=True))


def _with_outputs(model: Any, names: list[str]) -> bytes:
    """Return a model whose values all are outputs."""
    onnx = library("onnx")
    there = {one.name for one in (*model.graph.output, *model.graph.input)}
    for name in dict.fromkeys(names):
        if name not in there:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    data: bytes = model.SerializeToString()
    return data

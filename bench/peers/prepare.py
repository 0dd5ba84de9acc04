"""Files of one case: the net, its weights in every engine's form, one batch, the right results.

    python -m peers.prepare CASE SCALE FOLDER

The results are those of the portable path in float64, which no accelerating library takes part in;
of a forward pass those of the first of the batch.
"""

import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from nets import OTHERS

from demitasse import Net
from demitasse.blob import Blob
from demitasse.interop.onnx_export import export_onnx
from demitasse.io.proto import NetParameter, parse_text, write_text
from peers.cases import Case
from peers.digest import gradients
from peers.training import learnable, solver_of

__all__ = ["prepare"]

DROP = 0.05
"""Share of the loss that the step which is checked takes away, about."""

BIAS = 2.0

LABELS = 10
"""How many classes the labels of the batch are of."""


def prepare(case: Case, folder: Path) -> None:
    """Write all of it into ``folder``."""
    rng = np.random.default_rng(1)
    message = parse_text(case.prototxt(), NetParameter)
    trained = _with_weights(case, rng, folder)
    write_text(folder / "net.prototxt", message)
    net = Net(message, "TRAIN" if case.train else "TEST", weights=trained, device="numpy")
    batch = {name: _values(name, net.blobs[name].shape, rng) for name in net.inputs}
    np.savez(folder / "batch.npz", **batch)
    right, rate = _right(case, message, trained, batch)
    np.savez(folder / "right.npz", **right)
    weights = {key: blob.cpu_data() for key, blob in _parameters(net)}
    np.savez(folder / "weights.npz", **weights)
    if not case.train:
        _onnx(case, folder, message, weights)
    about = {
        "rate": rate,
        "forward_flop": sum(_multiplications(net)) * 2,
        "parameters": sum(blob.count for blob in net.learnable_params),
        "tops_mib": sum(blob.count for blob in net.structure.blob_list) * 4 / 2**20,
    }
    (folder / "about.json").write_text(json.dumps(about))


def _with_weights(case: Case, rng: np.random.Generator, folder: Path) -> Path:
    """Fill the parameters so that rounding cannot change the results much.

    Behind a batch normalisation a bias keeps most values away from the corner of ReLU. The last
    layer is scaled so that probabilities are neither flat nor all at one class, nor others 0 or 1.
    """
    pair = Case(case.net, max(case.batch, 2), "forward", case.scale)
    net = Net(parse_text(pair.prototxt(), NetParameter), "TRAIN", device="cpu", seed=1)
    _fill(net, {name: _values(name, net.blobs[name].shape, rng) for name in net.inputs})
    for layer in net.layers:
        if layer.type == "Scale" and layer.blobs:  # others weigh by a second bottom
            layer.blobs[1].mutable_cpu_data()[...] = BIAS
    net.forward()  # the statistics of batch normalisation are those of this pass
    last = [layer for layer in net.layers if layer.blobs][-1]
    softmax = [layer for layer in net.layers if layer.type == "Softmax"]
    name = softmax[0].param.bottom[0] if softmax else last.param.top[0]
    scores = net.blobs[name].cpu_data()
    last.blobs[0].mutable_cpu_data()[...] *= 1 / scores.std()
    path = folder / "weights.caffemodel"
    net.save(path)
    return path


def _values(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return what an input gets: random images or rows, labels, or whole sequences."""
    match name:
        case "label":
            values = rng.integers(0, LABELS, shape)
        case "cont":
            values = np.ones(shape)
            values[0] = 0
        case _:
            values = rng.normal(size=shape)
    return values.astype(np.float32)


def _fill(net: Net, batch: dict[str, np.ndarray]) -> None:
    """Fill the inputs; a smaller net gets the first of the batch."""
    for name, array in batch.items():
        values = net.blobs[name].mutable_cpu_data()
        values[...] = array[tuple(map(slice, values.shape))]


def _right(
    case: Case, message: NetParameter, trained: Path, batch: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], float]:
    """Return the right results, and the learning rate of the step among them."""
    if not case.train:
        first = parse_text(replace(case, batch=1).prototxt(), NetParameter)
        net = Net(first, "TEST", weights=trained, device="numpy", dtype="float64")
        _fill(net, batch)
        net.forward()
        return {"prob": net.blobs["prob"].cpu_data()}, 0.0
    solver = solver_of(message, 1.0, device="numpy", seed=1, dtype="float64")
    net = solver.net
    net.load(trained)
    _fill(net, batch)
    loss = net.forward_backward()
    found = gradients((key, blob.cpu_diff()) for key, blob in learnable(net))
    solver.param.base_lr = rate = DROP * loss / sum(float(g[0]) ** 2 for g in found.values())
    net.clear_param_diffs()
    solver.step(2)
    return {"losses": np.array([loss, solver.smoothed_loss]), **found}, rate


def _parameters(net: Net) -> Iterator[tuple[str, Blob]]:
    for layer in net.layers:
        yield from ((f"{layer.name}/{i}", blob) for i, blob in enumerate(layer.blobs))


def _multiplications(net: Net) -> Iterator[int]:
    """Yield the multiplications of each convolution and inner product, forward."""
    for index, layer in enumerate(net.layers):
        if layer.type in {"Convolution", "Deconvolution", "InnerProduct"}:
            blobs = (
                net.structure.bottom_ids(index)
                if layer.type == "Deconvolution"
                else net.structure.top_ids(index)
            )
            places = net.structure.blob_list[blobs[0]]
            yield layer.blobs[0].count * places.count // places.shape[1]


def _onnx(case: Case, folder: Path, message: NetParameter, weights: dict[str, np.ndarray]) -> None:
    try:
        from peers.onnx_twin import write_onnx
    except ImportError:
        return  # without the library that engine says what it lacks
    if case.net in OTHERS:
        export_onnx(message, folder / "weights.caffemodel", folder / "net.onnx", batch="fixed")
    else:
        write_onnx(folder / "net.onnx", message, weights)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    prepare(Case.parse(sys.argv[1], int(sys.argv[2])), Path(sys.argv[3]))

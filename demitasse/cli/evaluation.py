"""Nets run over their data: weights loaded, mean outputs, features written as databases.

Source: Caffe, ``tools/caffe.cpp`` (``test``).
Source: Caffe, ``tools/extract_features.cpp``.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from demitasse.core.log import get_logger, number
from demitasse.core.paths import check_exists
from demitasse.inference.cards.card_file import ONNX
from demitasse.io.data.databases.datum import array_to_datum
from demitasse.io.data.databases.writing import Records, new_database
from demitasse.io.weights.load import OnMismatch, load_files
from demitasse.net import Net
from demitasse.training import Epoch
from demitasse.training.nets import log_load_report

log = get_logger(__name__)


class Scores:
    """Sums of a net's outputs, each batch weighted by its number of records."""

    def __init__(self) -> None:
        self.batches, self.weight, self._loss = 0, 0.0, 0.0
        self._sums: dict[str, np.ndarray] = {}
        self._weights: dict[str, float] = {}

    def run(self, net: Net, batches: int | None, progress: Callable[[int, int], None]) -> None:
        """Run batches, or an epoch, in which each record counts once, and sum the outputs.

        ``progress`` is not called in an epoch, whose number of batches the data decides.
        """
        self._weights = dict(zip(net.blob_names, net.structure.blob_loss_weights, strict=True))
        one_each = ((1, net.forward()) for _ in range(batches or 0))
        for weight, loss in Epoch(net).batches() if batches is None else one_each:
            self._loss += weight * loss
            for name in net.outputs:
                self._add(name, net.blob_by_name(name).cpu_data(), weight)
            self.batches += 1
            self.weight += weight
            if batches is not None:
                progress(self.batches, batches)

    def _add(self, name: str, values: np.ndarray, weight: float) -> None:
        for value in values.reshape(-1).tolist():
            log.info("Batch %d, %s = %s", self.batches, name, number(value))
        part = weight * values.astype(np.float64)
        if not self.batches:
            self._sums[name] = part
        elif name in self._sums and self._sums[name].shape == part.shape:
            self._sums[name] += part
        elif self._sums.pop(name, None) is not None:
            log.warning("Output %s changes its shape; no mean is computed", name)

    @property
    def loss(self) -> float:
        """Mean of the loss."""
        return self._loss / self.weight

    def means(self) -> dict[str, np.ndarray]:
        """Return the mean of every output with a constant shape."""
        return {name: total / self.weight for name, total in self._sums.items()}

    def log_means(self) -> None:
        """Log the means in Caffe's lines, with their contributions to the loss."""
        log.info("Loss: %s", number(self.loss))
        for name, mean in self.means().items():
            loss_weight = self._weights[name]
            for value in mean.reshape(-1).tolist():
                share = f"{number(loss_weight)} = {number(loss_weight * value)} loss"
                note = f" (* {share})" if loss_weight else ""
                log.info("%s = %s%s", name, number(value), note)

    def as_dict(self) -> dict[str, Any]:
        """Return the means for JSON: plain numbers for outputs of one value."""
        outputs = {name: mean.tolist() for name, mean in self.means().items()}
        return {"batches": self.batches, "loss": self.loss, "outputs": outputs}


def open_net(path: Path, phase: str, *, device: str | None, **options: Any) -> Net:
    """Return the net in a prototxt, with options of ``Net``; or in an ONNX file, of phase TEST."""
    if path.suffix != ONNX:
        return Net(path, phase, device=device, **options)
    return imported_net(path, device=device)


def imported_net(path: Path, *files: Path, device: str | None) -> Net:
    """Return the net of an ONNX file, also written to ``files``, and log notes on the import."""
    from demitasse.interop.onnx_import import import_onnx

    check_exists(path)
    done = import_onnx(path, *files, device=device)
    for note in done.notes:
        log.info("%s: %s", path, note)
    return done.net


def load_weights_into(
    net: Net, files: Sequence[str | os.PathLike[str]], on_mismatch: OnMismatch = "raise"
) -> None:
    """Load files one after the other, and log what was left out of files and net."""
    for layer in load_files(net, files, on_mismatch, log_load_report):
        log.warning("No file has weights for layer %s; the initial weights stay", layer)


def write_features(
    net: Net, outputs: dict[str, Path], batches: int, backend: str, *, overwrite: bool,
    progress: Callable[[int, int], None],
) -> dict[Path, int]:  # fmt: skip
    """Run a net, write blobs as databases, which appear together, and return their counts."""
    blobs = {name: net.blob_by_name(name) for name in outputs}
    with ExitStack() as stack:
        written = {
            name: Records(stack.enter_context(new_database(path, backend, overwrite=overwrite)))
            for name, path in outputs.items()
        }
        for done in range(1, batches + 1):
            net.forward()
            for name, records in written.items():
                N, C, H, W = (blobs[name].legacy_shape(axis) for axis in range(4))
                for item in blobs[name].cpu_data().reshape(N, C, H, W):
                    if records.add(b"%010d" % records.count, array_to_datum(item)):
                        _log_count(name, records)
            progress(done, batches)
        for name, records in written.items():
            records.commit()
            _log_count(name, records)
    return {outputs[name]: records.count for name, records in written.items()}


def _log_count(name: str, records: Records) -> None:
    log.info("Extracted features of %d query images for feature blob %s", records.count, name)

"""Mean average precision of a test net's detections.

Source: SSD (weiliu89/caffe), ``Solver::TestDetection`` in ``src/caffe/solver.cpp``, and
``ComputeAP`` in ``src/caffe/util/bbox_util.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from demitasse.core.log import get_logger
from demitasse.errors import ConfigError, ErrorCode
from demitasse.net import Net

if TYPE_CHECKING:
    from demitasse.training.evaluation import BatchRunner

log = get_logger(__name__)


def eleven_points(precision: np.ndarray, recall: np.ndarray) -> float:
    """Return the mean of the best precisions at or above eleven recalls (VOC 2007)."""
    best = [precision[recall >= point / 10].max(initial=0) for point in range(11)]
    return float(np.mean(best))


def max_integral(precision: np.ndarray, recall: np.ndarray) -> float:
    """Return the integral of the best precision at or above each recall (VOC 2012)."""
    best = np.maximum.accumulate(precision[::-1])[::-1]
    before = np.concatenate([best[:1], best[:-1]])  # as in SSD: from the recall before
    return float((before * np.diff(recall, prepend=0)).sum())


def integral(precision: np.ndarray, recall: np.ndarray) -> float:
    """Return the integral of precision over recall."""
    return float((precision * np.diff(recall, prepend=0)).sum())


AP_VERSIONS = {"11point": eleven_points, "MaxIntegral": max_integral, "Integral": integral}
"""Function of precisions and recalls by ``ap_version``."""


def average_precision(
    scores: np.ndarray, correct: np.ndarray, objects: int, version: str = "Integral"
) -> float:
    """Return the average precision of the detections of one class.

    Args:
        scores: Shape: (K,).
        correct: Whether each detection is correct. Shape: (K,), bool.
        objects: Number of ground-truth objects.
        version: One of ``AP_VERSIONS``.

    Returns:
        From 0 to 1; 0 without detections or objects.
    """
    if not len(scores) or not objects:
        return 0.0
    hits = correct[np.argsort(-scores, kind="stable")].cumsum()
    precision, recall = hits / np.arange(1, len(hits) + 1), hits / objects
    return AP_VERSIONS[version](precision, recall)


@dataclass
class DetectionCounts:
    """Sum of the outputs of DetectionEvaluate, for the average precision of each class."""

    objects: dict[int, int] = field(default_factory=dict)  # ground-truth objects of each class
    rows: list[np.ndarray] = field(default_factory=list)  # class, score and correctness

    def add(self, output: np.ndarray) -> None:
        """Add one batch. Shape: (M, 5)."""
        counts = output[:, 0] == -1
        for _, kind, count, *_ in output[counts]:
            self.objects[int(kind)] = self.objects.get(int(kind), 0) + int(count)
        detections = output[~counts]
        counted = (detections[:, 3] != 0) | (detections[:, 4] != 0)
        self.rows.append(detections[counted][:, 1:4])

    def precisions(self, version: str) -> dict[int, float]:
        """Return the average precision of each class."""
        rows = np.concatenate(self.rows)
        by_class = {kind: rows[rows[:, 0] == kind] for kind in sorted(self.objects)}
        for kind, own in by_class.items():
            if not len(own):
                log.warning("No object of class %d was detected.", kind)
        return {
            kind: average_precision(own[:, 1], own[:, 2] == 1, self.objects[kind], version)
            for kind, own in by_class.items()
        }


def mean_average_precision(
    net: Net, batches: int, version: str, runner: BatchRunner, *, per_class: bool = False
) -> tuple[dict[str, np.ndarray], float]:
    """Run batches through a net; return the mean average precision of every output, and the loss.

    ``version`` is one of ``AP_VERSIONS``. With ``per_class`` the precision of each class is logged.

    Raises:
        ConfigError: Another layer than DetectionEvaluate writes an output, or there is none.
    """
    _check_outputs(net)
    counts = {name: DetectionCounts() for name in net.outputs}
    losses, weights = 0.0, 0

    def read(_: int) -> dict[str, np.ndarray]:
        return {name: net.blob_by_name(name).cpu_data()[0, 0].astype(np.float64) for name in counts}

    for weight, loss, outputs in runner.run(net, batches, read):
        losses, weights = losses + weight * loss, weights + weight
        for name, count in counts.items():
            count.add(outputs[name])
    means = {}
    for name, count in counts.items():
        precisions = count.precisions(version) if count.rows else {}
        if per_class:
            for kind, precision in precisions.items():
                log.info("class%d: %g", kind, precision)
        mean = sum(precisions.values()) / max(len(precisions), 1)
        means[name] = np.array(mean, net.dtype)
    return means, losses / (weights or 1)


def _check_outputs(net: Net) -> None:
    """Check that all outputs are those of DetectionEvaluate layers."""
    evaluated = {
        net.blob_names[top]
        for index, layer in enumerate(net.layers)
        if layer.type == "DetectionEvaluate"
        for top in net.structure.top_ids(index)
    }
    others = [name for name in net.outputs if name not in evaluated]
    if others or not net.outputs:
        got = f"outputs {', '.join(others)} of other layers" if others else "no output"
        message = (
            f'eval_type: "detection" got {got} of a test net, expected outputs of '
            "DetectionEvaluate layers alone"
        )
        raise ConfigError(message, code=ErrorCode.INVALID, field="eval_type", outputs=others)

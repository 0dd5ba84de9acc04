"""The mean average precision of what a test net detects.

Source: SSD (weiliu89/caffe), ``Solver::TestDetection`` in ``src/caffe/solver.cpp``, and
``ComputeAP`` in ``src/caffe/util/bbox_util.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from demitasse.core.log import get_logger
from demitasse.errors import ConfigError, ErrorCode
from demitasse.net import Net
from demitasse.training.tester import ByItself, Tester

__all__ = ["AP_VERSIONS", "average_precision", "mean_precisions"]

log = get_logger(__name__)


def eleven_points(precision: np.ndarray, recall: np.ndarray) -> float:
    """Return the mean of the best precisions from eleven recalls on (VOC 2007)."""
    best = [precision[recall >= point / 10].max(initial=0) for point in range(11)]
    return float(np.mean(best))


def max_integral(precision: np.ndarray, recall: np.ndarray) -> float:
    """Return the integral of the best precision from each recall on (VOC 2012)."""
    best = np.maximum.accumulate(precision[::-1])[::-1]
    before = np.concatenate([best[:1], best[:-1]])  # as in SSD: from the recall before, on
    return float((before * np.diff(recall, prepend=0)).sum())


def integral(precision: np.ndarray, recall: np.ndarray) -> float:
    """Return the integral of precision over recall."""
    return float((precision * np.diff(recall, prepend=0)).sum())


AP_VERSIONS = {"11point": eleven_points, "MaxIntegral": max_integral, "Integral": integral}
"""``ap_version`` -> what makes one number of precisions and the recalls they belong to."""


def average_precision(
    scores: np.ndarray, right: np.ndarray, objects: int, version: str = "Integral"
) -> float:
    """Return the average precision of the detections of one class.

    Args:
        scores: Shape: (K,).
        right: Whether each detection is. Shape: (K,), bool.
        objects: How many there are to be found.
        version: One of ``AP_VERSIONS``.

    Returns:
        From 0 to 1; 0 without detections or objects.
    """
    if not len(scores) or not objects:
        return 0.0
    hits = right[np.argsort(-scores, kind="stable")].cumsum()
    precision, recall = hits / np.arange(1, len(hits) + 1), hits / objects
    return AP_VERSIONS[version](precision, recall)


@dataclass
class Tally:
    """What DetectionEvaluate has put out.

    Attributes:
        objects: How many there are of each class.
        rows: Class, score, right for each detection that counts.
    """

    objects: dict[int, int] = field(default_factory=dict)
    rows: list[np.ndarray] = field(default_factory=list)

    def add(self, judged: np.ndarray) -> None:
        """Take note of one batch. Shape: (M, 5)."""
        counts = judged[:, 0] == -1
        for _, kind, count, *_ in judged[counts]:
            self.objects[int(kind)] = self.objects.get(int(kind), 0) + int(count)
        rest = judged[~counts]
        self.rows.append(rest[(rest[:, 3] != 0) | (rest[:, 4] != 0)][:, 1:4])

    def precisions(self, version: str) -> dict[int, float]:
        """Return the average precision of each class."""
        rows = np.concatenate(self.rows)
        of = {kind: rows[rows[:, 0] == kind] for kind in sorted(self.objects)}
        for kind, found in of.items():
            if not len(found):
                log.warning("Nothing of class %d was detected.", kind)
        return {
            kind: average_precision(found[:, 1], found[:, 2] == 1, self.objects[kind], version)
            for kind, found in of.items()
        }


def mean_precisions(
    net: Net,
    batches: int,
    version: str,
    tester: Tester | None = None,
    *,
    per_class: bool = False,
) -> tuple[dict[str, np.ndarray], float]:
    """Run batches through a net and return the mean average precision of every output.

    Args:
        net: The net, whose outputs are those of DetectionEvaluate layers.
        batches: How many; 0 is a whole epoch.
        version: One of ``AP_VERSIONS``.
        tester: Runs the batches; by default this process does.
        per_class: Whether to log the average precision of each class.

    Returns:
        The means, and the mean loss.

    Raises:
        ConfigError: An output is another layer's, or there is none.
    """
    _check_outputs(net)
    tallies = {name: Tally() for name in net.outputs}
    losses, weights = 0.0, 0

    def judged(_: int) -> dict[str, np.ndarray]:
        return {
            name: net.blob_by_name(name).cpu_data()[0, 0].astype(np.float64) for name in tallies
        }

    for weight, loss, found in (tester or ByItself()).run(net, batches, judged):
        losses, weights = losses + weight * loss, weights + weight
        for name, tally in tallies.items():
            tally.add(found[name])
    means = {}
    for name, tally in tallies.items():
        precisions = tally.precisions(version) if tally.rows else {}
        if per_class:
            for kind, precision in precisions.items():
                log.info("class%d: %g", kind, precision)
        mean = sum(precisions.values()) / max(len(precisions), 1)
        means[name] = np.array(mean, net.dtype)
    return means, losses / (weights or 1)


def _check_outputs(net: Net) -> None:
    """Refuse a net that puts out anything but judged detections."""
    judged = {
        net.blob_names[top]
        for index, layer in enumerate(net.layers)
        if layer.type == "DetectionEvaluate"
        for top in net.structure.top_ids(index)
    }
    others = [name for name in net.outputs if name not in judged]
    if others or not net.outputs:
        what = f"outputs {', '.join(others)} of other layers" if others else "no output"
        message = (
            f'eval_type: "detection" needs a test net that puts out what DetectionEvaluate layers '
            f"make, and nothing else; this one has {what}"
        )
        raise ConfigError(message, code=ErrorCode.INVALID, field="eval_type", outputs=others)

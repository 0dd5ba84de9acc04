"""A test: the mean of a net's outputs over some batches, or over every record exactly once.

Source: Caffe, ``Solver::Test`` in ``src/caffe/solver.cpp``; whole epochs are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.core.log import get_logger
from demitasse.errors import ErrorCode, ShapeError
from demitasse.io.proto import SolverParameter
from demitasse.net import Net
from demitasse.training.detection import mean_precisions
from demitasse.training.tester import ByItself, Tester

__all__ = ["evaluate", "mean_outputs"]

log = get_logger(__name__)


def evaluate(
    param: SolverParameter, index: int, net: Net, tester: Tester
) -> tuple[dict[str, np.ndarray], float]:
    """Test a net as ``eval_type`` says.

    Args:
        param: The solver's fields.
        index: Which of the test nets it is.
        net: That net.
        tester: Runs the batches. Where that is ended before its time, what is returned is of no
            use.

    Returns:
        The mean of every output, or the mean average precision of it, and the mean loss.
    """
    batches = param.test_iter[index]
    if param.eval_type != "detection":
        return _mean_outputs(net, batches, tester)
    per_class = param.show_per_class_result
    return mean_precisions(net, batches, param.ap_version, tester, per_class=per_class)


def mean_outputs(
    net: Net, batches: int, go_on: Callable[[], bool] = lambda: True
) -> tuple[dict[str, np.ndarray], float]:
    """Run batches through a net and return the mean of every output, and of the loss.

    Sums stay on the device until the end, in double precision.

    Args:
        net: The net, with data layers.
        batches: How many; 0 is a whole epoch.
        go_on: Asked before each; False ends the run, and what is returned is then of no use.

    Raises:
        ConfigError: A whole epoch is wanted of a net that has none.
        ShapeError: An output changes its shape from one batch to another.
    """
    return _mean_outputs(net, batches, ByItself(go_on))


def _mean_outputs(net: Net, batches: int, tester: Tester) -> tuple[dict[str, np.ndarray], float]:
    sums = _Sums(net, whole_epoch=batches == 0, on_host=tester.several)
    for weight, loss, parts in tester.run(net, batches, sums.parts):
        sums.add(weight, loss, parts)
    return sums.means()


class _Sums:
    """Weighted sums of a net's outputs, on its device or on the host: with the same bits."""

    def __init__(self, net: Net, *, whole_epoch: bool, on_host: bool) -> None:
        self._net, self._whole_epoch, self._on_host = net, whole_epoch, on_host
        self._sums: dict[str, Array] = {}
        self._outputs = list(net.outputs)
        self._loss, self._weight = 0.0, 0

    def parts(self, weight: int) -> dict[str, Array]:
        """Return the outputs that the net holds now, so many times."""
        backend = self._net.device.backend
        widest = backend.dtype("float64" if backend.has_float64 else "float32")
        with backend.enter():
            parts = {
                name: backend.xp.astype(self._net.blob_by_name(name).read(), widest) * weight
                for name in self._outputs  # copies, whatever the dtype
            }
        if self._on_host:
            return {name: np.asarray(backend.to_host(part)) for name, part in parts.items()}
        return parts

    def add(self, weight: int, loss: float, parts: Mapping[str, Array]) -> None:
        """Add the parts of a batch."""
        self._loss += weight * loss
        self._weight += weight
        with self._net.device.backend.enter():
            for name in list(self._outputs):
                part, total = parts[name], self._sums.get(name)
                if total is None:
                    self._sums[name] = part
                elif total.shape == part.shape:
                    self._sums[name] = total + part
                else:
                    self._changed(name, total.shape, part.shape)

    def _changed(self, name: str, before: tuple[int, ...], now: tuple[int, ...]) -> None:
        """Refuse, or leave out of an epoch, what has no mean."""
        message = f"output {name!r} changed from {before} to {now} between batches"
        if not self._whole_epoch:
            raise ShapeError(
                message, code=ErrorCode.SHAPE_MISMATCH, output=name, expected=before, got=now
            )
        log.warning("%s, so there is no mean of it.", message.capitalize())
        self._outputs.remove(name)
        del self._sums[name]

    def means(self) -> tuple[dict[str, np.ndarray], float]:
        """Return the mean of each output, in the net's dtype, and of the loss."""
        weight = self._weight or 1
        to_host = np.asarray if self._on_host else self._net.device.backend.to_host
        means = {
            name: np.asarray(to_host(total) / weight).astype(self._net.dtype)
            for name, total in self._sums.items()
        }
        return means, self._loss / weight

"""From gradients to new weights: clip, divide by ``iter_size``, decay, update.

Source: Caffe, ``src/caffe/solvers/sgd_solver.cpp`` (``ApplyUpdate``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from demitasse.backends.arrays import Array, PrivateLayout
from demitasse.backends.recording import NotRecorded, PreparedUpdate, RecordedUpdates
from demitasse.backends.updates import Piece, Update
from demitasse.blob import Blob
from demitasse.core.log import get_logger, number
from demitasse.core.out_of_memory import with_location
from demitasse.errors import OutOfMemoryError
from demitasse.io.proto import SolverParameter
from demitasse.memory.sides import any_live_view
from demitasse.net import Net
from demitasse.training import updates
from demitasse.training.history import History
from demitasse.training.updates import UpdateRule

__all__ = ["Updater"]

log = get_logger(__name__)


class Updater:
    """Changes the learnable parameters of a net by one solver's rule.

    Args:
        net: The training net.
        rule: The solver's rule.

    Attributes:
        history: What is remembered between updates.
    """

    def __init__(self, net: Net, rule: UpdateRule) -> None:
        self.net, self.rule = net, rule
        records = zip(net.structure.learnable_records, net.learnable_params, strict=True)
        self._factors = [
            (r.lr_mult, r.decay_mult, sum(n > 1 for n in blob.shape)) for r, blob in records
        ]
        self.history = History(net.learnable_params, rule.histories, net.dtype, net.device)

    def apply(
        self, param: SolverParameter, rate: float, iteration: int, guard: Array | None = None
    ) -> None:
        """Make one update from the gradients that the net holds.

        Clipping looks at the raw gradients, before they are divided by ``iter_size``. Afterwards
        the gradients of the parameters hold what was subtracted.

        Args:
            param: The solver's fields.
            rate: The learning rate.
            iteration: Number of updates made so far.
            guard: A 0-d array on a device that queues its work: where it is NaN or infinite
                nothing is changed. None changes all.
        """
        net = self.net
        self.history.to(net.device)
        memories = [m for b in net.learnable_params for m in (b.data_memory, b.diff_memory)]
        with net.exclusive("update"):
            watched = any_live_view()
            for memory in memories if watched else ():
                memory.before_pass()
            pieces = self._pieces(param, rate, iteration, guard)
            kernels = net.device.backend.updates
            if kernels is not None and not self.rule.trusts:
                kernels.apply(pieces)
            else:
                for piece in pieces:
                    updates.apply(net.device.backend.xp, piece)
            for memory in memories if watched else ():
                memory.after_pass()

    def prepare(
        self,
        kernels: RecordedUpdates,
        param: SolverParameter,
        rate: float,
        iteration: int,
        guard: Array | None,
    ) -> PreparedUpdate:
        """Return the update for kernels that are recorded; its numbers are given later.

        Raises:
            NotRecorded: Each parameter has a rate of its own, by what is on the device.
        """
        if self.rule.trusts:
            message = f"{self.rule.type} computes a learning rate for each parameter"
            raise NotRecorded(message)
        return kernels.prepare(self._pieces(param, rate, iteration, guard))

    def moved(self) -> tuple[int, ...]:
        """Return which parameters an update changes."""
        coasts, moving = self.rule.coasts, self.history.moving
        return tuple(
            index
            for index, (lr, *_) in enumerate(self._factors)
            if lr or (coasts and moving[index])
        )

    def updates(
        self,
        param: SolverParameter,
        rate: float,
        iteration: int,
        scale: float | Array = 1.0,
        guard: Array | None = None,
    ) -> list[Update]:
        """Return an iteration's numbers for each of the parameters that it changes.

        Args:
            param: The solver's fields.
            rate: The learning rate.
            iteration: Number of updates made so far.
            scale: What raw gradients are multiplied with first.
            guard: As ``apply`` takes it.
        """
        common = replace(updates.numbers(param, self.rule, rate, iteration), guard=guard)
        known: dict[tuple[float, float, int], Update] = {}
        found = []
        for index in self.moved():
            factors = self._factors[index]
            if factors not in known:
                known[factors] = updates.scaled(common, *factors, scale)
            found.append(known[factors])
        return found

    def _pieces(
        self, param: SolverParameter, rate: float, iteration: int, guard: Array | None
    ) -> list[Piece]:
        net = self.net
        scale = self._clip_scale(param)
        if param.iter_size > 1:
            scale = scale / param.iter_size
        wanted = self.updates(param, rate, iteration, scale, guard)
        histories, pieces = self.history.views(), []
        for index, update in zip(self.moved(), wanted, strict=True):
            self.history.moving[index] = True
            blob = net.learnable_params[index]
            try:
                pieces.append(self._piece(update, index, blob, histories[index]))
            except (OutOfMemoryError, MemoryError, OSError) as error:
                explain = net.device.backend.explained
                fault = with_location(error, f"update of parameter {blob.name!r}", explain=explain)
                raise fault from fault.__cause__
        return pieces

    def _piece(self, update: Update, index: int, blob: Blob, own: Sequence[Array]) -> Piece:
        """Return what the update of a parameter works on: its values, gradient and history.

        Args:
            update: What is done.
            index: Number of the parameter.
            blob: The parameter.
            own: Its history, in C order.
        """
        data, diff = blob.data_memory, blob.diff_memory
        layout = _common_layout(blob, padded=self.rule.zero_stays)
        self.history.order(index, layout)
        if layout is not None:
            own = self.history.parts(index)
            arrays = data.mutable_private_data(layout), diff.mutable_private_data(layout)
        else:
            arrays = (
                self._flat(data.mutable_gpu_data(), blob.count),
                self._flat(diff.mutable_gpu_data(), blob.count),
            )
        return Piece(update, *arrays, own, blob.count)

    def _clip_scale(self, param: SolverParameter) -> float | Array:
        """Return what keeps the L2 norm of all gradients within ``clip_gradients``."""
        limit = param.clip_gradients
        if limit < 0:
            return 1.0
        backend = self.net.device.backend
        diffs = [
            self._flat(blob.diff_memory.gpu_data(), blob.count)
            for blob in self.net.learnable_params
            if not blob.diff_memory.cleared
        ]
        if not diffs:
            return 1.0
        kernels = backend.updates
        total = updates.sumsq(backend.xp, diffs) if kernels is None else kernels.sumsq(diffs)
        if not isinstance(total, float):  # stays on the device: nobody waits for it
            recorder = backend.recorder
            if recorder is not None:
                return recorder.updates.clip_scale(total, limit)
            return updates.clip_scale(backend.xp, total, limit)
        norm = math.sqrt(total)
        if not norm > limit:
            return 1.0
        log.info(
            "Gradient clipping: scaling down gradients (L2 norm %s > %s) by scale factor %s",
            number(norm), number(limit), number(limit / norm),
        )  # fmt: skip
        return limit / norm

    def _flat(self, array: Array, count: int) -> Array:
        return array if array.shape[0] == count else array[:count]


def _common_layout(blob: Blob, *, padded: bool) -> PrivateLayout | None:
    """Return the private layout that a backend keeps a weight and its gradient in.

    None where they are not in one and the same: C order then. With ``padded`` it may have padding.
    """
    layout = blob.diff_memory.layout
    if layout is None or layout is not blob.data_memory.layout:
        return None
    return layout if padded or layout.size == blob.count else None

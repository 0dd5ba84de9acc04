"""Update of the weights: clip gradients, divide by ``iter_size``, add decay, apply the rule.

Source: Caffe, ``src/caffe/solvers/sgd_solver.cpp`` (``ApplyUpdate``).
"""

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.recording import NotRecorded
from demitasse.backends.updates import (
    Piece,
    PreparedUpdate,
    QueuedUpdateKernels,
    RecordedUpdateKernels,
    Update,
)
from demitasse.blob import Blob
from demitasse.core.device import Device
from demitasse.core.log import get_logger, number
from demitasse.core.out_of_memory import with_location
from demitasse.errors import OutOfMemoryError
from demitasse.io.proto import SolverParameter
from demitasse.memory import SyncedMemory
from demitasse.memory.sides import any_live_view
from demitasse.net import Net
from demitasse.plan.replay import Replay
from demitasse.training import update_rules
from demitasse.training.update_rules import UpdateRule

log = get_logger(__name__)

LABEL = "the history of the solver"  # name of the history in messages

LOSS_SCALE = (65536.0, 0.0)
"""The loss scale of the first update, and the number of updates since its last change."""

GROWTH_INTERVAL = 2000.0  # updates after which the loss scale is doubled, as in PyTorch


class History:
    """One or two history arrays for each parameter.

    The order is that of Caffe's solver states: the first kind for every parameter, then the second.

    Attributes:
        shapes: The parameters' shapes.
        memories: The memories of the arrays, in their order.
        nonzero: For each parameter, whether its history may be other than zero.
    """

    def __init__(self, params: Sequence[Blob], kinds: int, dtype: str, device: Device) -> None:
        self.shapes = [blob.shape for blob in params]
        counts = [blob.count for blob in params] * kinds
        self.memories = [SyncedMemory(count, dtype, device, LABEL) for count in counts]
        self.nonzero = [False] * len(params)

    def __len__(self) -> int:
        """Return the number of arrays, as a solver state counts them."""
        return len(self.memories)

    def to(self, device: Device) -> None:
        """Move to another device; contents are copied at their next use."""
        for memory in self.memories:
            if memory.device is not device:
                memory.to(device)

    def of(self, index: int) -> list[SyncedMemory]:
        """Return the memories of a parameter's arrays."""
        return self.memories[index :: len(self.shapes)]

    def array_shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of all arrays."""
        return list(itertools.islice(itertools.cycle(self.shapes), len(self.memories)))

    def arrays(self) -> list[np.ndarray]:
        """Return all arrays on the host, for reading, in their parameters' shapes."""
        shapes = self.array_shapes()
        return [m.cpu_data().reshape(s) for m, s in zip(self.memories, shapes, strict=True)]

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """Copy all arrays, in the same order; each has its parameter's number of elements."""
        many = len(self.shapes)
        with np.errstate(over="ignore", invalid="ignore"):  # double to float, as in C
            for memory, array in zip(self.memories, arrays, strict=True):
                memory.mutable_cpu_data()[...] = array.reshape(-1)
        self.nonzero = [any(array.any() for array in arrays[i::many]) for i in range(many)]


class RepeatedUpdate(NamedTuple):
    """An update that is replayed with the coefficients of other iterations.

    Attributes:
        moved: Indices of the parameters.
        forms: What is computed for each.
        memories: The memories that it was prepared for.
        coefficients: Those of the present iteration, which a replay reads.
        replay: The replay.
    """

    moved: tuple[int, ...]
    forms: Hashable
    memories: list[SyncedMemory]
    coefficients: Array
    replay: Replay


class Updater:
    """Changes the learnable parameters of a net by one solver's rule.

    Attributes:
        history: The history arrays.
        loss_scale: Factor of the gradients of a net whose values are stored as "half", (2,): the
            factor, and the number of updates since its last change. None for other nets.
    """

    def __init__(self, net: Net, rule: UpdateRule) -> None:
        self.net, self.rule = net, rule
        self._records = net.structure.learnable_records
        self._long_axes = [sum(n > 1 for n in blob.shape) for blob in net.learnable_params]
        self.history = History(net.learnable_params, rule.formula.histories, net.dtype, net.device)
        self._known: tuple[tuple[object, ...], list[Update]] | None = None
        self._repeated: RepeatedUpdate | None = None
        self.loss_scale: SyncedMemory | None = None
        if net.storage == "half":
            self.loss_scale = SyncedMemory(2, "float32", net.device, "the loss scale")
            self.set_loss_scale(LOSS_SCALE)

    def set_loss_scale(self, values: Sequence[float]) -> None:
        """Set the loss scale, and the number of updates since its last change, if there is one."""
        if self.loss_scale is not None:
            self.loss_scale.mutable_cpu_data()[...] = values

    def numbers(self, param: SolverParameter, rate: float, iteration: int) -> Update:
        """Return the coefficients of an iteration's update, for multipliers of 1."""
        return update_rules.numbers(param, self.rule, rate, iteration)

    def apply(self, param: SolverParameter, numbers: Update, guard: Array | None = None) -> None:
        """Make one update from the gradients of the net.

        Clipping uses the raw gradients, before they are divided by ``iter_size``. Afterwards the
        gradients contain the values that were subtracted from the weights.

        Args:
            param: The solver's fields.
            numbers: Coefficients of the iteration.
            guard: A 0-d array on a device that queues its work: if it is NaN or infinite, nothing
                changes. None always updates.
        """
        net = self.net
        self.history.to(net.device)
        with net.exclusive("update"):
            watched = self._memories() if any_live_view() else []
            for memory in watched:
                memory.before_pass()
            self._apply(self.updates(numbers, *self._scale(param, guard)))
            for memory in watched:
                memory.after_pass()

    def _apply(self, updates: Sequence[Update]) -> None:
        backend = self.net.device.backend
        kernels = backend.updates
        if kernels is None or self.rule.trusts:
            for piece in self._pieces(updates):
                update_rules.apply(backend.xp, piece)
        elif isinstance(kernels, RecordedUpdateKernels) and not self.net.plan.replay_blocker():
            self._replay(kernels, updates)
        else:
            kernels.apply(self._pieces(updates))

    def _replay(self, kernels: RecordedUpdateKernels, updates: Sequence[Update]) -> None:
        """Make an update, if possible by a replay of an earlier one with these coefficients."""
        found, recorder = kernels.coefficients(updates), self.net.device.backend.recorder
        if found is None or recorder is None:
            kernels.apply(self._pieces(updates))
            return
        (coefficients, forms), moved, memories = found, self.moved(), self._memories()
        if self._repeated is None or self._repeated[:3] != (moved, forms, memories):
            replay = Replay((), recorder, lambda: memories)
            self._repeated = RepeatedUpdate(moved, forms, memories, coefficients, replay)
        repeated = self._repeated
        repeated.coefficients[...] = coefficients
        for index in moved:
            gradient = self.net.learnable_params[index].diff_memory
            if gradient.cleared:
                gradient.mutable_gpu_data()  # writes zeros, which is no call of a replay
        repeated.replay.run(lambda: kernels.apply(self._pieces(updates), repeated.coefficients))

    def _memories(self) -> list[SyncedMemory]:
        """Return the memories of the parameters, their gradients and the history."""
        params = self.net.learnable_params
        own = [memory for blob in params for memory in (blob.data_memory, blob.diff_memory)]
        return [*own, *self.history.memories]

    def prepare(
        self, param: SolverParameter, numbers: Update, guard: Array | None
    ) -> PreparedUpdate:
        """Return the update for a recording; its numbers are written before each replay.

        NotRecorded is raised if the rule computes a rate for each parameter on the device.
        """
        kernels = self.net.device.backend.updates
        if self.rule.trusts or not isinstance(kernels, QueuedUpdateKernels):
            message = f"{self.rule.type} computes a learning rate for each parameter"
            raise NotRecorded(message)
        updates = self.updates(numbers, *self._scale(param, guard))
        return kernels.prepare(self._pieces(updates))

    def moved(self) -> tuple[int, ...]:
        """Return the indices of the parameters that an update changes."""
        coasts, nonzero = self.rule.coasts, self.history.nonzero
        moved = [
            index
            for index, record in enumerate(self._records)
            if not record.frozen and (record.lr_mult or (coasts and nonzero[index]))
        ]
        return tuple(moved)

    def multipliers(self) -> tuple[tuple[float, float], ...]:
        """Return the multipliers of rate and decay of each parameter."""
        return tuple([(record.lr_mult, record.decay_mult) for record in self._records])

    def updates(
        self, numbers: Update, scale: float | Array = 1.0, guard: Array | None = None
    ) -> list[Update]:
        """Return the coefficients of an iteration for each parameter that changes.

        ``scale`` is the factor of raw gradients. A call with the numbers of the call before returns
        the same list again.
        """
        moved, multipliers = self.moved(), self.multipliers()
        key = (numbers, moved, multipliers, scale)
        plain = guard is None and isinstance(scale, float) and isinstance(numbers.rate, float)
        if plain and self._known is not None and self._known[0] == key:
            return self._known[1]
        common = replace(numbers, guard=guard)
        by_factors: dict[tuple[float, float, int], Update] = {}
        updates = []
        for index in moved:
            record = self._records[index]
            factors = record.lr_mult, record.decay_mult, self._long_axes[index]
            if factors not in by_factors:
                by_factors[factors] = update_rules.scaled(common, *factors, scale)
            updates.append(by_factors[factors])
        if plain:
            self._known = key, updates
        return updates

    def _scale(
        self, param: SolverParameter, guard: Array | None
    ) -> tuple[float | Array, Array | None]:
        """Return the factor of raw gradients, and the guard of the update."""
        if self.loss_scale is None or self.net.storage == "float":
            scale = self._clip_scale(param)
        else:
            scale, guard = self._unscale(self.loss_scale, param, guard)
        return scale / param.iter_size if param.iter_size > 1 else scale, guard

    def _pieces(self, updates: Sequence[Update]) -> list[Piece]:
        """Return the arrays of the updates of all parameters that change."""
        net = self.net
        pieces = []
        for index, update in zip(self.moved(), updates, strict=True):
            self.history.nonzero[index] = True
            blob = net.learnable_params[index]
            try:
                pieces.append(self._piece(update, index, blob))
            except (OutOfMemoryError, MemoryError, OSError) as error:
                explain = net.device.backend.explained
                fault = with_location(error, f"update of parameter {blob.name!r}", explain=explain)
                raise fault from fault.__cause__
        return pieces

    def _piece(self, update: Update, index: int, blob: Blob) -> Piece:
        """Return the arrays of a parameter's update: values, gradient and history."""
        data, diff = blob.data_memory.mutable_gpu_data(), blob.diff_memory.mutable_gpu_data()
        history = [memory.mutable_gpu_data() for memory in self.history.of(index)]
        return Piece(update, _flat(data, blob), _flat(diff, blob), history)

    def _unscale(
        self, loss_scale: SyncedMemory, param: SolverParameter, guard: Array | None
    ) -> tuple[float | Array, Array | None]:
        """Return the factor of scaled gradients, clipping included, and the guard of the update.

        The loss scale is halved if gradients are not finite, and the guard prevents the update.
        """
        kernels, diffs = self.net.device.backend.updates, self._gradients()
        if not diffs or not isinstance(kernels, QueuedUpdateKernels):
            return 1.0, guard
        state, limit = loss_scale.mutable_gpu_data(), param.clip_gradients
        return kernels.unscale(kernels.sumsq(diffs), state, guard, limit, GROWTH_INTERVAL)

    def _gradients(self) -> list[Array]:
        """Return the gradients of all parameters that have one and are not frozen."""
        return [
            _flat(blob.diff_memory.gpu_data(), blob)
            for blob, record in zip(self.net.learnable_params, self._records, strict=True)
            if not (blob.diff_memory.cleared or record.frozen)
        ]

    def _clip_scale(self, param: SolverParameter) -> float | Array:
        """Return the factor that limits the L2 norm of all gradients to ``clip_gradients``."""
        limit, backend = param.clip_gradients, self.net.device.backend
        diffs = self._gradients() if limit >= 0 else []
        if not diffs:
            return 1.0
        kernels = backend.updates
        total = update_rules.sumsq(backend.xp, diffs) if kernels is None else kernels.sumsq(diffs)
        if not isinstance(total, float):  # stays on the device, without a synchronization
            if isinstance(kernels, QueuedUpdateKernels):
                return kernels.clip_scale(total, limit)
            return update_rules.clip_scale(backend.xp, total, limit)
        norm = math.sqrt(total)
        if not norm > limit:
            return 1.0
        log.info(
            "Gradient clipping: scaling down gradients (L2 norm %s > %s) by scale factor %s",
            number(norm), number(limit), number(limit / norm),
        )  # fmt: skip
        return limit / norm


def _flat(array: Array, blob: Blob) -> Array:
    return array if array.shape[0] == blob.count else array[: blob.count]

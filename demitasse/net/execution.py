"""Execution: the passes of a net, run by its plan.

``Passes`` runs layers, calls the callbacks between them, brings live views of blobs up to date, and
opens the buffers that blobs share. ``Execution`` adds what a caller expects of a pass: one thread
at a time, a rollback of an interrupted pass, the loss, and a launch as one where the device can.

Source: Caffe, ``Net::ForwardFromTo`` and ``Net::BackwardFromTo`` in ``src/caffe/net.cpp``.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce

from demitasse.backends.arrays import Array
from demitasse.backends.storage import Stored
from demitasse.blob import VersionCounter
from demitasse.core.device import Device
from demitasse.core.out_of_memory import MEMORY_ERRORS, located_memory_error
from demitasse.core.threads import Uninterrupted
from demitasse.errors import ErrorCode, NetError, OutOfMemoryError
from demitasse.layers import LayerContext
from demitasse.layers.context import PassCounter
from demitasse.memory import SyncedMemory, transfers
from demitasse.memory.sides import any_live_view, viewed_memories
from demitasse.memory.transfers import Guard, current_guard, transfer_mode
from demitasse.net.build import initialize_parameters
from demitasse.net.debug import log_backward, log_forward, log_totals
from demitasse.net.graph_capture import CapturableWork, GraphCapture, count_sources, layer_blocker
from demitasse.net.labels import LabelCheck
from demitasse.net.memory_usage import suggest_batch_size
from demitasse.net.rollback import StatefulBlobs
from demitasse.net.structure import Structure
from demitasse.plan import Plan
from demitasse.plan.liveness import Allocator, elidable_blobs

Callback = Callable[[int], None]


class ExclusiveLock:
    """Lock for work on a net; reentrant, and an error instead of a wait in other threads.

    Two passes over the same blobs are a mistake: their order would be chance.
    """

    __slots__ = ("_acquire", "_name", "_release")

    def __init__(self, name: str) -> None:
        lock = threading.RLock()
        self._name, self._acquire, self._release = name, lock.acquire, lock.release

    def __enter__(self) -> None:
        """Acquire the lock; raise a NetError if another thread has it."""
        if not self._acquire(False):
            message = (
                f"net {self._name!r} is in use by another thread; use a net in one thread at a "
                "time, or give each thread its own net (net.clone())"
            )
            raise NetError(message, code=ErrorCode.BAD_STATE, net=self._name)

    def __exit__(self, *exception: object) -> None:
        self._release()


class Loss:
    """The loss of a forward pass, which the device may still be computing.

    Synchronous devices copy it to the host at once, at no cost. The array, (), is the sum of the
    weighted loss tops; None without a loss layer. ``read`` calls ``check``, which may raise.
    """

    def __init__(self, array: Array | None, device: Device, check: Callable[[float], None]) -> None:
        self.array = array
        self._device, self._check = device, check
        self._number = None if device.backend.queues else self._to_host()

    def wait(self) -> float:
        """Return the number, unchecked, once the device has done all earlier work."""
        if self._number is None:
            self._number = self._to_host()
        return self._number

    def read(self) -> float:
        """Return the number, checked: a label that is no class raises a DataError."""
        number = self.wait()
        self._check(number)
        return number

    def _to_host(self) -> float:
        if self.array is None:
            return 0.0
        if not self._device.shares_host:
            dtype = self.array.dtype
            transfers.note(down=dtype.itemsize if hasattr(dtype, "itemsize") else 4)
        return float(self._device.backend.to_host(self.array))


class Passes:
    """Runs the layers of a net by a plan; of blobs that are not ``kept``, buffers are shared.

    Attributes:
        debug_info: Whether mean absolute values of all blobs are logged.
        stateful_blobs: The blobs that carry state from one forward pass to the next.
        gradients_valid: False from an interrupted backward pass until gradients are cleared.
        loss_scale: Factor of all gradients, its first element; None for 1.
        before_forward, after_forward: Called with a layer's index around its forward.
        before_backward, after_backward: Called with a layer's index around its backward.
    """

    def __init__(
        self,
        structure: Structure,
        kept: frozenset[str] | None,
        *,
        optimize: bool,
        storage: Stored = "float",
    ) -> None:
        self._structure, self._kept, self._storage = structure, kept, storage
        self._allocator: Allocator | None = None
        self.loss_scale: SyncedMemory | None = None
        self._changes = VersionCounter()
        self._serials: tuple[int, frozenset[int]] = (-1, frozenset())
        self.plan = self._planned(optimize=optimize)
        self.debug_info, self.gradients_valid = False, True
        self._guard = Guard()
        self._blocker: tuple[tuple[int, Plan], str] | None = None
        self._initialized = False
        self.stateful_blobs = StatefulBlobs(structure.layers)
        self._interrupted: tuple[int, int] | None = None  # layers of an interrupted forward pass
        self.before_forward: list[Callback] = []
        self.after_forward: list[Callback] = []
        self.before_backward: list[Callback] = []
        self.after_backward: list[Callback] = []

    @property
    def changes(self) -> int:
        """Number of the last change of a blob's shape or memory."""
        return self._changes.number

    @property
    def last(self) -> int:
        """Index of the last layer."""
        return len(self._structure.layers) - 1

    @property
    def sources(self) -> int:
        """Number of layers at the beginning that only bring data in."""
        return count_sources(self.plan.entries)

    def capture_blocker(self) -> str:
        """Return why the passes cannot be captured; "" if they can."""
        if self._has_callbacks:
            return "callbacks run between layers"
        if self.debug_info:
            return "layers are observed one by one"
        if self._leased():
            return "a live view of a blob (blob.data) is in use"
        if why := self.plan.replay_blocker():
            return why
        key = (self._changes.number, self.plan)
        if self._blocker is None or self._blocker[0] != key:
            self._blocker = (key, layer_blocker(self.plan.entries))
        return self._blocker[1]

    def reset_plan(self) -> None:
        """Discard all prepared Steps, for a net that has moved to another device."""
        observer = self.plan.observer
        self.plan = self._planned(optimize=self.plan.optimize)
        self.plan.observer = observer

    def forward(self, first: int, last: int) -> list[Array]:
        """Run layers ``first`` to ``last``; return weighted loss tops on the device, () each."""
        if not self._initialized:
            initialize_parameters(self._structure.params_list)
            self._initialized = True
        try:
            with self._pass(first, last, backward=False):
                self.stateful_blobs.before_pass(first, last)
                terms = self._forward(first, last)
        except BaseException:
            self._interrupted = (first, last)
            raise
        interrupted = self._interrupted
        if interrupted is not None and first <= interrupted[0] and interrupted[1] <= last:
            self._interrupted = None
        return terms

    def replay(self) -> bool:
        """Repeat the calls of an earlier forward pass over all layers, if calls were all it was.

        No layer may carry state from pass to pass (``stateful_blobs``). False leaves everything as
        it is.
        """
        if self._interrupted is not None or self.debug_info or self._has_callbacks:
            return False
        try:
            if any_live_view():
                self._take_over_views()
            replayed = self.plan.replay()
            if replayed and any_live_view():
                self._show_views()
        except BaseException:
            self._interrupted = (0, self.last)
            raise
        return replayed

    def run_all(self, run: Callable[[], Array | None]) -> Array | None:
        """Run all layers forward by a function, which may call ``forward`` for parts of them."""
        try:
            loss = run()
        except BaseException:
            self._interrupted = (0, self.last)
            raise
        self._interrupted = None
        return loss

    def backward(self, first: int, last: int) -> None:
        """Run layers ``first`` down to ``last``, both included; see ``Net.backward``."""
        if self._allocator is not None and not self._allocator.backward:
            message = (
                "a net in phase TEST made with keep_blobs=... only runs forward; make it without "
                "keep_blobs to run backward"
            )
            raise NetError(message, code=ErrorCode.UNSUPPORTED, field="keep_blobs")
        if self._storage != "float" and self._structure.phase == "TEST":
            message = f"a net in phase TEST with storage {self._storage!r} only runs forward"
            raise NetError(message, code=ErrorCode.UNSUPPORTED, field="storage", got=self._storage)
        if self._interrupted is not None:
            message = "the last forward pass was interrupted; run forward() before backward()"
            raise NetError(message, code=ErrorCode.BAD_STATE)
        try:
            with self._pass(first, last, backward=True), self._scaled_losses(first, last):
                self._backward(first, last)
        except BaseException:
            self.gradients_valid = False
            raise
        if self.debug_info:
            log_totals(self._structure)

    @property
    def _has_callbacks(self) -> bool:
        forward = self.before_forward or self.after_forward
        return bool(forward or self.before_backward or self.after_backward)

    def _forward(self, first: int, last: int) -> list[Array]:
        if not (self._has_callbacks or self.debug_info):
            return self.plan.forward(first, last)
        # layer by layer: no layers are fused, and each has its own gradient
        terms: list[Array] = []
        for index in range(first, last + 1):
            self._call(self.before_forward, index)
            terms += self.plan.forward(index, index)
            if self.debug_info:
                log_forward(self._structure, index)
            self._call(self.after_forward, index)
        return terms

    def _backward(self, first: int, last: int) -> None:
        if not (self.before_backward or self.after_backward or self.debug_info):
            self.plan.backward(first, last)
            return
        for index in range(first, last - 1, -1):
            self._call(self.before_backward, index)
            self.plan.backward(index, index)
            if self.debug_info and self._structure.needs.layers[index]:
                log_backward(self._structure, index)
            self._call(self.after_backward, index)

    def _call(self, callbacks: Sequence[Callback], index: int) -> None:
        if callbacks and (guard := current_guard()) is not None:
            guard.at(f"a callback at layer {self._structure.layers[index].name!r}")
        for callback in [*callbacks]:  # one may remove itself
            callback(index)

    @contextmanager
    def _scaled_losses(self, first: int, last: int) -> Iterator[None]:
        """Multiply the loss weights of some layers by the loss scale, for a backward pass."""
        if self.loss_scale is None:
            yield
            return
        device, phase = self._structure.layers[last].device, self._structure.phase
        if device.backend.supported_storage(self._storage, phase) == "float":
            yield
            return
        self.loss_scale.to(device)
        bindings = self._structure.bindings()[last : first + 1]
        weighted = [
            (blob, weight)
            for binding in bindings
            for blob, weight in zip(binding.top, binding.layer.loss_weights, strict=False)
            if weight
        ]
        factor = self.loss_scale.gpu_data()[0]
        try:
            for blob, _ in weighted:
                diff = blob.mutable_gpu_diff()
                diff *= factor
            yield
        finally:
            for blob, weight in weighted:
                blob.set_diff(weight)

    @contextmanager
    def _pass(self, first: int, last: int, *, backward: bool) -> Iterator[None]:
        """Open the shared buffers for a pass over some layers, and close them after the pass."""
        allocator = self._allocator
        if allocator is not None and allocator.backward != backward:
            allocator = None
        if allocator is not None:
            if not backward:
                self.plan.reshape()
            allocator.update(self.plan.fusion.ends)
            allocator.check_reads(first, last)
        try:
            if allocator is not None:
                allocator.arena.open = True
            self._take_over_views()
            mode = transfer_mode()
            if mode == "allow":
                yield
                self._show_views()
            else:
                with self._guard.for_pass(mode):
                    yield
                    self._guard.after_pass()
                    self._show_views()
        finally:
            if allocator is not None:
                allocator.arena.open = False

    def _take_over_views(self) -> None:
        """Make values newest that were written through live views of blobs."""
        for memory in self._leased():
            memory.before_pass()

    def _show_views(self) -> None:
        """Bring live views of blobs up to date."""
        for memory in self._leased():
            memory.after_pass()

    def _planned(self, *, optimize: bool) -> Plan:
        """Return a plan of the layers; assign shared buffers to the blobs that are not kept."""
        bindings = self._structure.bindings()
        if self._kept is None:
            return Plan(bindings, self._changes, optimize=optimize)
        if self._allocator is not None:
            self._allocator.release()
        wanted = self._kept.union(self._structure.inputs, self._structure.outputs)
        kept = [blob for name, blob in self._structure.blobs.items() if name in wanted]
        if self._structure.phase == "TRAIN":
            self._allocator = Allocator(bindings, kept, self._changes, backward=True)
            return Plan(bindings, self._changes, optimize=optimize)
        bindings = [replace(binding, backward=False) for binding in bindings]
        self._allocator = Allocator(bindings, kept, self._changes)
        return Plan(
            bindings, self._changes, optimize=optimize, elidable=elidable_blobs(bindings, kept)
        )

    def _leased(self) -> list[SyncedMemory]:
        """Return the memories of the net that have live views."""
        if not any_live_view():
            return []
        if self._serials[0] != self._changes.number:
            blobs = [*self._structure.blob_list, *self._structure.params_list]
            serials = (m.serial for b in blobs for m in (b.data_memory, b.diff_memory))
            self._serials = (self._changes.number, frozenset(serials))
        ours = self._serials[1]
        return [memory for memory in viewed_memories() if memory.viewed and memory.serial in ours]


class Execution:
    """Runs a net: in one thread at a time, with rollback, the loss and graph capture."""

    def __init__(
        self,
        structure: Structure,
        context: LayerContext,
        kept: frozenset[str] | None,
        *,
        optimize: bool,
    ) -> None:
        self._structure, self._context = structure, context
        self.passes = Passes(structure, kept, optimize=optimize, storage=context.storage)
        self.lock = ExclusiveLock(structure.name)
        layers = structure.layers
        self._draws = structure.phase == "TRAIN" or any(layer.random_in_test for layer in layers)
        self._rolled_back = [layer for layer in layers if layer.has_counters]
        stateless = not (self._draws or self._rolled_back or self.passes.stateful_blobs.any)
        self._may_replay = stateless  # otherwise calls alone are not all of a pass
        self.labels = LabelCheck(structure)
        # The first passes after cleared gradients write them on the device; the others add to them.
        self._captured_forward, self._captured_first, self._captured_more = (
            GraphCapture(self, f"{kind} passes", self.memories)
            for kind in ("forward", "training", "training")
        )

    @property
    def device(self) -> Device:
        """The device."""
        return self._context.device

    @property
    def plan(self) -> Plan:
        """The plan of the layers."""
        return self.passes.plan

    @property
    def pass_counter(self) -> PassCounter:
        """The net's pass counter."""
        return self._context.pass_counter

    # -- passes --------------------------------------------------------------------------------

    def forward(self, first: int, last: int) -> float:
        """Run layers ``first`` to ``last``; return their loss; see ``Net.forward``."""
        if self._may_replay and (first, last) == (0, self.passes.last) and self._replay():
            return 0.0
        return self._queue_forward(first, last, wait=True).read()

    def backward(self, first: int, last: int) -> None:
        """Run layers ``first`` down to ``last``; see ``Net.backward``."""
        with self.exclusive("backward"):
            self.passes.backward(first, last)

    def forward_backward(self) -> float:
        """Run forward and backward; return the loss; see ``Net.forward_backward``."""
        with self.lock:
            loss = self._launch_training() or self.queue_passes()
            try:
                return loss.read()
            except BaseException:
                self.passes.gradients_valid = False  # they may be those of a refused batch
                raise

    def queue_passes(self) -> Loss:
        """Run forward and backward without a wait for the device; return the loss.

        Labels are not checked until the loss is read; read it before the next pass.
        """
        with self.lock:
            last = self.passes.last
            loss = self._queue_forward(0, last, wait=False)
            if not self.device.backend.queues:
                loss.read()
            self.backward(last, 0)
        return loss

    def _replay(self) -> bool:
        """Repeat the compiled calls of an earlier pass over all layers, if calls were all it was.

        A layer with a loss, and a check of labels, prevent that.
        """
        with self.lock:
            try:
                return self.passes.replay()
            except MEMORY_ERRORS as error:
                fault = self._explained(error, "forward")
                if fault is error:
                    raise
                raise fault from fault.__cause__

    def _queue_forward(self, first: int, last: int, *, wait: bool) -> Loss:
        """Run layers ``first`` to ``last``; roll back what a failed or interrupted pass changed.

        With ``wait`` the device has done the pass when the method returns.
        """
        whole = (first, last) == (0, self.passes.last)
        if whole and wait and self.device.backend.queues and self._captured_forward.ready():
            return self._launch(self._captured_forward, "forward", backward=False)
        with self.exclusive("forward"), self._rollback_on_error():
            terms = self.passes.forward(first, last)
            loss = self._loss(total(terms, self.device), first, last)
            if wait:
                loss.wait()
            if self._draws:
                self._context.pass_counter.passes += 1
        return loss

    def _launch_training(self) -> Loss | None:
        """Run forward and backward, launched as one if possible; None where nothing was done."""
        if not self.device.backend.queues or self.plan.completed is not None:
            return None  # each layer's gradients are asked for one by one
        params = self._structure.learnable_params
        cleared = all(blob.diff_memory.cleared for blob in params)
        captured = self._captured_first if cleared else self._captured_more
        if not captured.ready():
            return None
        return self._launch(captured, "forward and backward", backward=True)

    def _launch(self, captured: GraphCapture, doing: str, *, backward: bool) -> Loss:
        """Run the layers that bring data in, then all others by ``captured``; wait for the loss."""
        rest = partial(self.queue_rest, backward=backward)

        def run() -> Array | None:
            self.queue_sources()
            return captured.run(CapturableWork(rest, rest))

        with self.exclusive(doing), self._rollback_on_error():
            loss = self.finish_pass(self.passes.run_all(run))
            loss.wait()
        return loss

    def _loss(self, loss: Array | None, first: int, last: int) -> Loss:
        return Loss(loss, self.device, partial(self.labels.after_pass, first, last))

    # -- captured passes -----------------------------------------------------------------------

    def memories(self) -> list[SyncedMemory]:
        """Return all memories that passes use, internal blobs of layers included."""
        structure = self._structure
        internal = [blob for layer in structure.layers for blob in layer.internal_blobs()]
        blobs = [*structure.blob_list, *structure.params_list, *internal]
        found = {m.serial: m for b in blobs for m in (b.data_memory, b.diff_memory)}
        scale = self.passes.loss_scale
        return [*found.values(), *(() if scale is None else (scale,))]

    def volatile(self) -> frozenset[int]:
        """Return the serials of the memories of inputs and outputs."""
        structure = self._structure
        outputs = [structure.blob_list[index].data_memory for index in structure.graph.outputs]
        return frozenset(memory.serial for memory in (*self.source_memories(), *outputs))

    def queue_sources(self) -> None:
        """Run the layers at the beginning that only bring data in, unless these compute nothing."""
        count = self.passes.sources
        if not all(entry.layer.is_alias for entry in self.plan.entries[:count]):
            with self.lock, self.device.backend.enter():
                self.passes.forward(0, count - 1)

    def source_memories(self) -> list[SyncedMemory]:
        """Return the memories of the tops of the layers at the beginning that bring data in."""
        structure, layers = self._structure, range(self.passes.sources)
        blobs = [structure.blob_list[i] for layer in layers for i in structure.top_ids(layer)]
        return [blob.data_memory for blob in blobs]

    def queue_rest(self, *, backward: bool) -> Array | None:
        """Run the other layers forward; count no pass and check no labels.

        With ``backward`` all layers run backward then. The loss is () on the device; None without a
        loss layer.
        """
        last = self.passes.last
        with self.lock, self.device.backend.enter():
            terms = self.passes.forward(self.passes.sources, last)
            if backward:
                self.passes.backward(last, 0)
            return total(terms, self.device)

    def finish_pass(self, loss: Array | None, count: int = 1) -> Loss:
        """Count forward passes over all layers that were queued; return their loss, ()."""
        if self._draws:
            self._context.pass_counter.passes += count
        return self._loss(loss, 0, self.passes.last)

    # -- around a pass -------------------------------------------------------------------------

    @contextmanager
    def exclusive(self, doing: str) -> Iterator[None]:
        """Hold the lock, make the device current, and explain a lack of memory.

        ``doing`` names the work, for an error without the name of a layer.
        """
        backend = self.device.backend
        try:
            with self.lock, backend.enter():
                yield
        except MEMORY_ERRORS as error:
            fault = self._explained(error, doing)
            if fault is error:
                raise
            raise fault from fault.__cause__

    def savepoint(self) -> Callable[[], None]:
        """Return a function that rolls back all forward passes from now on (``Net.savepoint``)."""
        counter = self._context.pass_counter
        count = counter.passes
        parts = [layer.savepoint() for layer in self._rolled_back]
        parts.append(self.passes.stateful_blobs.savepoint())

        def roll_back() -> None:
            with Uninterrupted(), self.device.backend.enter():
                for part in parts:
                    part()
                counter.passes = count

        return roll_back

    @contextmanager
    def _rollback_on_error(self) -> Iterator[None]:
        roll_back = self.savepoint()
        try:
            yield
        except BaseException:
            roll_back()
            raise

    def _explained(self, error: Exception, doing: str) -> Exception:
        """Return one of ``MEMORY_ERRORS`` with its place, and the batch size that would fit."""
        fault = located_memory_error(error, doing, self.device.backend.explained)
        if isinstance(fault, OutOfMemoryError):
            suggest_batch_size(fault, self._structure, self.plan, self.device)
        return fault


def total(terms: Sequence[Array], device: Device) -> Array | None:
    """Return the sum of a pass's weighted loss tops on its device; None without any.

    Shapes: () each -> ().
    """
    return reduce(device.backend.add, terms) if terms else None

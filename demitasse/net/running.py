"""How a net runs: its passes, what surrounds them, and the parts of a pass that can be recorded.

Source: Caffe, ``Net::ForwardFromTo`` and ``Net::BackwardFromTo`` in ``src/caffe/net.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from demitasse.backends.arrays import Array
from demitasse.core.device import Device
from demitasse.core.out_of_memory import MEMORY_ERRORS, located_memory_error
from demitasse.core.threads import Uninterrupted
from demitasse.errors import OutOfMemoryError
from demitasse.layers import Layer, LayerContext
from demitasse.memory import SyncedMemory
from demitasse.net.described import Described
from demitasse.net.labels import LabelCheck
from demitasse.net.launched import Launched, LaunchedPasses
from demitasse.net.loss import Loss, total
from demitasse.net.memory_use import MemoryUse, memory_held, say_what_fits
from demitasse.net.passes import Callback, Passes
from demitasse.net.states import States
from demitasse.net.turn import Turn
from demitasse.plan import Plan

__all__ = ["Running"]

Where = int | str | None


class Running(Described):
    """The passes of a net, for whoever makes all that they need.

    Attributes:
        device: Where it runs.
        turn: What a thread holds while it works on the net: ``with net.turn:`` keeps others out
            for more than one call.
    """

    device: Device
    turn: Turn
    _context: LayerContext
    _draws: bool
    _labels: LabelCheck
    _launched: Launched
    _passes: Passes
    _remembering: Sequence[Layer]

    # -- how it runs --------------------------------------------------------------------------

    @property
    def passes(self) -> int:
        """Forward passes in phase TRAIN so far: what random numbers are keyed by, besides the seed.

        May be set, to draw the same numbers again.
        """
        return self._context.pass_counter.passes

    @passes.setter
    def passes(self, value: int) -> None:
        self._context.pass_counter.passes = value

    @property
    def plan(self) -> Plan:
        """How its layers run."""
        return self._passes.plan

    @property
    def debug_info(self) -> bool:
        """Whether passes write mean absolute values of everything to the log; may be set."""
        return self._passes.debug_info

    @debug_info.setter
    def debug_info(self, value: bool) -> None:
        self._passes.debug_info = value

    @property
    def before_forward(self) -> list[Callback]:
        """Called with a layer's index before its forward; add yours to the list."""
        return self._passes.before_forward

    @property
    def after_forward(self) -> list[Callback]:
        """Called with a layer's index after its forward."""
        return self._passes.after_forward

    @property
    def before_backward(self) -> list[Callback]:
        """Called with a layer's index before its backward."""
        return self._passes.before_backward

    @property
    def after_backward(self) -> list[Callback]:
        """Called with a layer's index after its backward."""
        return self._passes.after_backward

    @property
    def base_dir(self) -> Path | None:
        """Folder of the prototxt, where named files are looked for too."""
        return self._context.base_dir

    # -- passes --------------------------------------------------------------------------------

    def forward(self, start: Where = None, end: Where = None) -> float:
        """Run layers from ``start`` to ``end``, both included, by name or index; by default all.

        Returns:
            The sum over loss tops of their value times their weight.

        Raises:
            DataError: A label is none of the classes that the scores have, and not ignored.
        """
        if start is None and end is None and self._again():
            return 0.0
        first = 0 if start is None else self.layer_number(start)
        last = len(self.structure.layers) - 1 if end is None else self.layer_number(end)
        return self._queue_forward(first, last, wait=True).read()

    def _again(self) -> bool:
        """Run all layers as an earlier pass did, where that made calls of compiled code alone.

        That is never so where a layer gives a loss, or looks at labels.
        """
        if self._draws or self._remembering or self._passes.states.any:
            return False
        with self.turn:
            try:
                return self._passes.again()
            except MEMORY_ERRORS as error:
                fault = self._explained(error, "forward")
                if fault is error:
                    raise
                raise fault from fault.__cause__

    def _queue_forward(self, first: int, last: int, *, wait: bool) -> Loss:
        """Run layers ``first`` to ``last``; done whole or taken back, as far as is waited for."""
        whole = (first, last) == (0, self._passes.last)
        if whole and wait and self.device.backend.queues and self._launched.forward.begin():
            return self._launch(self._launched.forward, "forward")
        with self.at_work("forward"), self._taken_back_if_cut():
            terms = self._passes.forward(first, last)
            loss = self._loss(total(terms, self.device), first, last)
            if wait:
                loss.wait()
            if self._draws:
                self._context.pass_counter.passes += 1
        return loss

    def _launch_training(self) -> Loss | None:
        """Run forward and backward, launched as one if possible; None where nothing was done."""
        if not self.device.backend.queues or self.plan.completed is not None:
            return None  # who asks for each layer's gradients gets them one by one
        launched = self._launched.training(self.learnable_params)
        return self._launch(launched, "forward and backward") if launched.begin() else None

    def _launch(self, passes: LaunchedPasses, doing: str) -> Loss:
        """Run all layers, launched as one if possible; done whole or taken back."""
        with self.at_work(doing), self._taken_back_if_cut():
            loss = self.played(self._passes.whole(passes.run))
            loss.wait()
        return loss

    @contextmanager
    def _taken_back_if_cut(self) -> Iterator[None]:
        take_back = self.remember()
        try:
            yield
        except BaseException:
            take_back()
            raise

    def _loss(self, loss: Array | None, first: int, last: int) -> Loss:
        return Loss(loss, self.device, partial(self._labels.after_pass, first, last))

    def backward(self, start: Where = None, end: Where = None) -> None:
        """Run layers from ``start`` down to ``end``, both included; by default all.

        Raises:
            NetError: The net is one of phase TEST that was made with ``keep``; or the last forward
                pass was not done to its end.
        """
        first = len(self.structure.layers) - 1 if start is None else self.layer_number(start)
        last = 0 if end is None else self.layer_number(end)
        with self.at_work("backward"):
            self._passes.backward(first, last)

    def forward_backward(self) -> float:
        """Run forward and backward; return the loss.

        A device that queues its work has all of it queued before anybody waits for the loss.

        Raises:
            DataError: A label is none of the classes that the scores have, and not ignored.
        """
        with self.turn:
            loss = self._launch_training() or self.queue_passes()
            try:
                return loss.read()
            except BaseException:
                self._passes.gradients_whole = False  # they may be of a batch that was refused
                raise

    def queue_passes(self) -> Loss:
        """Run forward and backward, and return the loss for whoever wants to wait for it.

        Until it is read nobody has looked at the labels; read it before the next pass.
        """
        with self.turn:
            loss = self._queue_forward(0, len(self.structure.layers) - 1, wait=False)
            if not self.device.backend.queues:
                loss.read()
            self.backward()
        return loss

    # -- passes that are recorded --------------------------------------------------------------

    def obstacle(self) -> str:
        """Say why passes that were run once cannot be recorded; "" where they can."""
        return self._passes.obstacle()

    @property
    def changes(self) -> int:
        """The number of the last change of a blob's shape or memory."""
        return self._passes.changes

    @property
    def states(self) -> States:
        """What forward passes leave for later ones, to be taken back."""
        return self._passes.states

    @property
    def launched_by(self) -> object:
        """Who ran the last forward pass, where it was launched as one; None where it was queued."""
        return self._passes.launched_by

    @launched_by.setter
    def launched_by(self, value: object) -> None:
        self._passes.launched_by = value

    def memories(self) -> list[SyncedMemory]:
        """Return all memories that passes work on, those that layers keep for themselves too."""
        kept = [blob for layer in self.layers for blob in layer.internal_blobs()]
        blobs = [*self.structure.blob_list, *self.structure.params_list, *kept]
        found = {m.serial: m for b in blobs for m in (b.data_memory, b.diff_memory)}
        return list(found.values())

    def queue_sources(self) -> None:
        """Run the layers at the beginning, which only bring data in."""
        count = self._passes.sources
        if count:
            with self.turn, self.device.backend.enter():
                self._passes.forward(0, count - 1)

    def queue_rest(self, *, backward: bool) -> Array | None:
        """Run the layers behind those forward; leave no other trace.

        Args:
            backward: Whether to run all backward then.

        Returns:
            The loss, () on the device; None where no layer gives one.
        """
        last = self._passes.last
        with self.turn, self.device.backend.enter():
            terms = self._passes.forward(self._passes.sources, last)
            if backward:
                self._passes.backward(last, 0)
            return total(terms, self.device)

    def played(self, loss: Array | None) -> Loss:
        """Take note that all layers have been queued, and of their loss, ()."""
        if self._draws:
            self._context.pass_counter.passes += 1
        return self._loss(loss, 0, self._passes.last)

    def remember(self) -> Callable[[], None]:
        """Return a function that takes back the forward passes made from now on.

        It brings back what they leave for later passes: positions in the data, counts that random
        numbers are keyed by, running averages, hidden states. Other blobs stay as they are.
        """
        passes = self.passes
        parts = [layer.savepoint() for layer in self._remembering]
        parts.append(self._passes.states.remember())

        def take_back() -> None:
            with Uninterrupted(), self.device.backend.enter():
                for one in parts:
                    one()
                self.passes = passes

        return take_back

    def reshape(self) -> None:
        """Let every layer give its tops their shapes, without computing anything."""
        with self.at_work("reshape"):
            self.plan.reshape()

    @contextmanager
    def at_work(self, doing: str) -> Iterator[None]:
        """Surround work on the net's blobs: no other thread works on them, its device is current.

        Args:
            doing: What is done, for a lack of memory that no layer is named for.

        Raises:
            NetError: Another thread works on the net.
            OutOfMemoryError: The memory does not suffice; says which batch would fit.
        """
        backend = self.device.backend
        try:
            with self.turn, backend.enter():
                yield
        except MEMORY_ERRORS as error:
            fault = self._explained(error, doing)
            if fault is error:
                raise
            raise fault from fault.__cause__

    def _explained(self, error: Exception, doing: str) -> Exception:
        """Return one of ``SHORTAGES`` with its place, and what would fit."""
        fault = located_memory_error(error, doing, self.device.backend.explained)
        if isinstance(fault, OutOfMemoryError):
            say_what_fits(fault, self)
        return fault

    @property
    def memory_use(self) -> MemoryUse:
        """What it holds at present of its device's memory, by part."""
        return memory_held(self)

    def synchronize(self) -> None:
        """Wait until the device has done everything it was given."""
        self.device.backend.synchronize()

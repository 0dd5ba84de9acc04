"""Layers of a plan: blobs, Steps, and the reasons why nothing faster runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from demitasse.backends.arrays import PrivateLayout
from demitasse.backends.kernel_cache import LRUCache
from demitasse.backends.ops import Op
from demitasse.backends.step import AnyStep, Declined, Operands
from demitasse.blob import Blob, VersionCounter
from demitasse.core.frozen_struct import FrozenStruct
from demitasse.layers.base import Layer
from demitasse.plan.layout import LayoutAssignment

CACHED_SHAPES = 16  # number of shapes of its blobs for which a layer's Steps stay prepared


Key = tuple[object, ...]


class Choice(FrozenStruct):
    """Code of a layer for some shapes of the blobs.

    Attributes:
        step: The Step; None for the layer's portable code.
        why: Why nothing faster runs; empty for the fastest code.
        refused: For each of the first lowerings, why its Step cannot be used; empty if no
            further lowering is to be tried.
    """

    step: AnyStep | None
    why: str = ""
    refused: tuple[str, ...] = ()


class Group(FrozenStruct):
    """Consecutive layers, run by one Step."""

    step: AnyStep
    count: int


@dataclass(frozen=True)
class LayerBinding:
    """A layer with its blobs, the bottoms whose gradients are wanted, and True for backward."""

    layer: Layer
    bottom: tuple[Blob, ...]
    top: tuple[Blob, ...]
    propagate_down: tuple[bool, ...]
    backward: bool

    @property
    def label(self) -> str:
        """Name of the layer in messages."""
        return f"layer {self.layer.name!r} ({self.layer.type})"


class PlannedLayer:
    """One layer of a plan, with the Step that runs it, or None for its portable code.

    Attributes:
        executed_step: The Step of the last forward, which backward follows.
        group: The layers from this one on that run as one, or None.
        executed_group: The group whose Step ran this layer and has the state for its gradient.
        why: Why nothing faster runs.
        why_not_fused: Why no more of the layers after this one run as one with it.
        seen: Number of the last change when the shapes were last computed.
    """

    def __init__(self, binding: LayerBinding, layouts: LayoutAssignment, *, optimize: bool) -> None:
        self.binding, self.layer, self._layouts = binding, binding.layer, layouts
        self.step: AnyStep | None = None
        self.executed_step: AnyStep | None = None
        self.group: Group | None = None
        self.executed_group: Group | None = None
        self.why = self.why_not_fused = ""
        self.seen = -1
        self._optimize = optimize
        self._key: Key = ()
        self._weighted = [blob.shape for blob in binding.top]
        self._choices: LRUCache[Choice] = LRUCache(CACHED_SHAPES)
        self._groups: LRUCache[tuple[Group | None, str]] = LRUCache(CACHED_SHAPES)

    def subscribe(self, changes: VersionCounter) -> None:
        """Have all blobs of the layer count their changes there, also blobs of another net."""
        for blob in (*self.binding.bottom, *self.binding.top, *self.layer.blobs):
            blob.subscribe(changes)

    def reshape(self) -> None:
        """Compute the shapes of the tops."""
        self.layer.run_reshape(self.binding.bottom, self.binding.top)
        shapes = [blob.shape for blob in self.binding.top]
        if shapes != self._weighted:
            self.layer.fill_loss_weights(self.binding.top)
            self._weighted = shapes

    def lower(self) -> bool:
        """Find or prepare the Step for the present shapes; return True for a new Step."""
        op = self.layer.op
        read = (self._written(blob) for blob in self.binding.bottom)
        self._key = (self._operands_key(), *read)
        if op is None or not self._optimize:
            self.step = None
            self.why = "plans are off" if op is not None else ""
            return False
        found = self._choices.find(self._key)
        if found is None or found.refused:
            refused = found.refused if found else ()
            operands = self._operands()
            try:
                self.step = self.layer.device.backend.lower(op, operands, refused)
            except Declined as declined:
                found = self._choices.keep(self._key, Choice(None, str(declined)))
            else:
                return True
        self.step, self.why = found.step, found.why
        return False

    def lower_backward(self) -> bool:
        """Prepare the gradient of a new Step; return False if another is to be tried.

        The Step is cached only now: one whose preparation was interrupted is never used again.
        """
        if self.step is None:
            return True
        refused = self.step.refused
        choice = Choice(self.step, "; ".join((*refused, *self.step.declined)))
        if self._has_backward:
            try:
                self.step.prepare_backward()
            except Declined as declined:
                choice = Choice(None, refused=(*refused, f"its gradient: {declined}"))
        self.step, self.why = choice.step, choice.why
        self._choices.keep(self._key, choice)
        return choice.step is not None

    def fuse(self, followers: Sequence[PlannedLayer]) -> None:
        """Find or prepare a group of this layer and as many of the ``followers`` as possible."""
        members = [self, *followers]
        read = [self._written(blob) for blob in self.binding.bottom]
        tops = [member.binding.top[0].data_memory for member in members]
        wanted = [(self._layouts.preferred(top), self._layouts.agreed(top)) for top in tops]
        key = (*(member._key for member in members), *read, *wanted)
        found = self._groups.find(key) or self._groups.keep(key, self._fused(members))
        self.group, self.why_not_fused = found

    def _fused(self, members: Sequence[PlannedLayer]) -> tuple[Group | None, str]:
        """Return the longest group that the backend runs as one, and why it is no longer."""
        why = ""
        chain = [member.layer.op for member in members if member.layer.op]
        operands = [member._operands() for member in members]
        steps = [member.step for member in members]
        for count in range(len(members), 0 if self.follows_layouts else 1, -1):
            try:
                fuse = self.layer.device.backend.fuse
                return Group(fuse(chain[:count], operands[:count], steps[:count]), count), why
            except Declined as declined:
                why = str(declined)
        return None, why

    @property
    def follows_layouts(self) -> bool:
        """True if its Step is fused also alone, for the layouts that others prefer and write."""
        return self.step is not None and self.step.follows_layouts

    def may_follow(self, first: Op, top: Blob, *, elidable: bool) -> bool:
        """Return whether this layer may run as one with the layers before it.

        ``first`` is the operation of the first of those layers, and ``top`` the only blob that the
        last of them writes. ``elidable`` is True if only this layer reads ``top``.
        """
        mine, op = self.binding, self.layer.op
        if op is None or self.layer.loss_weights or len(mine.top) != 1:
            return False
        if mine.bottom == mine.top == (top,):
            return True
        elsewhere = top in mine.bottom and mine.top[0] not in mine.bottom
        return elidable and elsewhere and op.fuses_after(first)

    def forward(self) -> None:
        """Compute the tops."""
        self.executed_step, self.executed_group = self.step, None
        if self.step is not None:
            self.step.forward()
        else:
            self.layer.run_forward(self.binding.bottom, self.binding.top)

    def backward(self) -> None:
        """Compute the wanted gradients, by the code that ran the last forward."""
        step = self.executed_step
        if step is not None and not step.portable_gradient:
            step.backward()
        else:
            binding = self.binding
            self.layer.backward(binding.top, binding.propagate_down, binding.bottom)

    @property
    def workspace(self) -> int:
        """Scratch memory of the prepared Steps, in bytes."""
        return sum(step.workspace for step in self._steps())

    @property
    def held(self) -> int:
        """Scratch memory of the prepared Steps that is not borrowed from the engine, in bytes."""
        return sum(step.workspace for step in self._steps() if not step.uses_shared_scratch)

    def _steps(self) -> list[AnyStep]:
        """Return all prepared Steps, also those for earlier shapes."""
        steps = [choice.step for choice in self._choices.values()]
        steps += [group.step for group, _ in self._groups.values() if group is not None]
        return [step for step in steps if step is not None]

    def prepared(self) -> tuple[object, ...]:
        """Return the Step and the group of the next forward, and the operands that they have."""
        internal = tuple(blob.data_memory.serial for blob in self.layer.internal_blobs())
        return self.step, self.group, self._operands_key(), internal

    @property
    def forward_step(self) -> AnyStep | None:
        """The Step of the next forward pass: that of the group, if the layer begins one."""
        return self.step if self.group is None else self.group.step

    def _written(self, blob: Blob) -> PrivateLayout | None:
        return self._layouts.written(blob.data_memory)

    @property
    def _has_backward(self) -> bool:
        """True if gradients are prepared; nets of phase TEST in 16 bits only run forward."""
        layer = self.layer
        forward_only = layer.context.storage != "float" and layer.phase == "TEST"
        return self.binding.backward and not forward_only

    def _operands_key(self) -> Key:
        # a Step may refer to memories, so a blob with another memory is another operand
        blobs = (*self.binding.bottom, *self.binding.top, *self.layer.blobs)
        return (
            self.layer.op,
            tuple((b.data_memory.serial, b.diff_memory.serial, b.shape) for b in blobs),
        )

    def _operands(self) -> Operands:
        binding, layer = self.binding, self.layer
        storage = layer.device.backend.supported_storage(layer.context.storage, layer.phase)
        return Operands(
            bottom=binding.bottom, top=binding.top, params=tuple(layer.blobs), saved=layer.saved,
            propagate_down=binding.propagate_down,
            param_propagate_down=tuple(
                layer.param_propagate_down(i) for i in range(len(layer.blobs))
            ),
            phase=layer.phase,
            backward=self._has_backward,
            random_words=layer.random_words, draw=layer.draw, layouts=self._layouts,
            storage=storage,
        )  # fmt: skip

"""Layout assignment: format propagation over the layers of a plan.

A backend may store blobs in private layouts: channels last, or on the cpu backend blocks of
channels. A Step is fast in some layouts, and a change of layout between two Steps costs a copy.
Steps therefore choose their layouts one after the other, each with those of the Steps before it.

Steps state their layouts as values (``Step.layout_uses``): layouts that a Step writes, and layouts
that a Step prefers to read, or none of them. The plan collects these in one pass over its
layers whenever it prepares Steps, with three sweeps:

1. In the order of the layers, each Step is prepared for the layouts in which the Steps before it
   write its bottoms.
2. In reverse, its backward pass is prepared for the layouts of its tops' gradients.
   Without its backward pass, a Step is left out, and the two sweeps are repeated.
3. In the order of the layers again, groups of layers are fused. A group may write its last top in
   the layout that its readers prefer. A Step that follows the layouts of others is prepared again.

A prepared Step that is used again states the same layouts as a new one, and is only used again for
bottoms in the layouts that it was prepared for. The assignment follows from the layers, their
shapes and the range of the pass, not from what was prepared before. It is a prediction: contents in
another layout are converted when a Step reads them.
"""

from collections import defaultdict
from collections.abc import Iterable

from demitasse.backends.arrays import PrivateLayout
from demitasse.backends.step import AnyStep, LayoutUse, Memory

Shape = tuple[int, ...]


class LayoutAssignment:
    """Layouts of the memories of a plan's blobs, in the present sweep."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all layouts, at the start of the first sweep."""
        self._preferred: dict[int, dict[int, PrivateLayout | None]] = defaultdict(dict)
        self.clear_written()

    def clear_written(self) -> None:
        """Forget the written layouts, at the start of the sweep of groups."""
        self._written: dict[int, PrivateLayout | None] = {}

    def add(self, step: AnyStep | None, *, backward: bool = False) -> None:
        """Add the layouts of a layer's prepared Step; None for portable code."""
        uses = [
            (role, blob, layout, (blob.diff_memory if diff else blob.data_memory).serial)
            for role, blob, layout, diff in _uses(step, backward=backward)
        ]
        written = {serial: layout for role, _, layout, serial in uses if role == "written"}
        self._written |= written
        for role, blob, layout, serial in uses:
            if layout is None and (backward or serial in written):  # in place
                continue
            if role == "preferred":
                preferred = self._preferred[serial]
                preferred.pop(id(blob), None)  # the last reader of a blob comes last
                preferred[id(blob)] = layout

    def add_written(self, step: AnyStep | None) -> None:
        """Add the layouts that a layer's Step, or that of the group that it begins, writes."""
        for use in _uses(step, backward=False):
            if use.role == "written":
                self._written[use.blob.data_memory.serial] = use.layout

    def written(self, memory: Memory, shape: Shape | None = None) -> PrivateLayout | None:
        """Return the layout in which the last Step before writes a memory; None for none.

        With ``shape``, a layout of another shape is none: most Steps read a memory that is shared
        in another shape in C order.
        """
        layout = self._written.get(memory.serial)
        return layout if layout is not None and shape in (None, layout.shape) else None

    def preferred(self, memory: Memory) -> tuple[PrivateLayout, ...]:
        """Return the layouts that the readers of a memory prefer, one for each of its blobs.

        Of several readers of a blob the last counts, because the others are in place.
        """
        readers = self._preferred.get(memory.serial, {}).values()
        return tuple(layout for layout in readers if layout is not None)

    def agreed(self, memory: Memory) -> PrivateLayout | None:
        """Return the layout that all readers of a memory prefer; None if there is none."""
        first, *others = self._preferred.get(memory.serial, {}).values() or (None,)
        return None if any(other is not first for other in others) else first


def _uses(step: AnyStep | None, *, backward: bool) -> Iterable[LayoutUse]:
    return () if step is None else step.layout_uses(backward=backward)

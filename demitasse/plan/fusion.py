"""Fusion: consecutive layers of a plan that one Step may run."""

from collections.abc import Sequence

from demitasse.plan.planned_layer import PlannedLayer

LONGEST = 40  # largest number of layers that may run as one; backends take fewer


class Fusion:
    """Decides which layers may run as one, and has the backend prepare their Steps.

    ``elidable`` are the ids of blobs that one layer writes, one layer reads, and no caller reads.
    """

    def __init__(
        self, entries: Sequence[PlannedLayer], elidable: frozenset[int], *, optimize: bool
    ) -> None:
        self._entries, self._elidable, self._optimize = entries, elidable, optimize

    def last_fusable(self, index: int, end: int) -> int:
        """Return the index of the last layer that may run as one with layer ``index``."""
        layer, top = self._entries[index].layer, self._entries[index].binding.top
        if not self._optimize or layer.op is None or layer.loss_weights or len(top) != 1:
            return index
        end = min(end, index + LONGEST - 1)
        while index < end:
            follower = self._entries[index + 1]
            if not follower.may_follow(layer.op, top[0], elidable=id(top[0]) in self._elidable):
                break
            index, top = index + 1, follower.binding.top
        return index

    def ends(self) -> list[int]:
        """Return, for each layer, the last of those that may run as one with it."""
        end, last, found = len(self._entries) - 1, -1, []
        for index in range(len(self._entries)):
            last = max(last, self.last_fusable(index, end))
            found.append(last)
        return found

    def fuse(self, head: PlannedLayer, index: int, end: int) -> int:
        """Fuse layer ``index`` with as many followers as possible; return the number of layers."""
        head.group = None
        last = self.last_fusable(index, end)
        if last > index:
            head.fuse(self._entries[index + 1 : last + 1])
        count = head.group.count if head.group else 1
        for member in self._entries[index + 1 : index + count]:
            member.group = None
        return count

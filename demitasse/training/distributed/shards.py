"""Which shards of the data each process works on."""

from __future__ import annotations

from dataclasses import dataclass

from demitasse.errors import ConfigError, ErrorCode

__all__ = ["Shards"]


@dataclass(frozen=True)
class Shards:
    """The shards of a run, and those of one process.

    A run has the same shards for its whole life. Shard r of S reads records r, r + S, ..., and has
    its gradient to itself; process p of n works on shards p, p + n, ... So n may be another
    whenever the run is taken up, and no bit of the result depends on it.

    Attributes:
        count: How many shards the run has.
        rank: The number of this process.
        size: How many processes there are.

    Raises:
        ConfigError: There are more processes than shards.
    """

    count: int = 1
    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if self.count < self.size:
            message = (
                f"{self.size} processes cannot share {self.count} shards; start at most "
                f"{self.count}, or give --shards {self.size} or more to a new run"
            )
            raise ConfigError(
                message,
                code=ErrorCode.OUT_OF_RANGE,
                field="shards",
                got=self.count,
                expected=self.size,
            )

    def of(self, rank: int) -> range:
        """Return the shards of a process."""
        return range(rank, self.count, self.size)

    @property
    def hosted(self) -> range:
        """The shards of this process."""
        return self.of(self.rank)

    @property
    def added_at_home(self) -> bool:
        """Whether each process may add its shards up before they go to others.

        It may where the tree of :func:`order.add_up` does so, too: as long as a level adds shards
        of the same process. Otherwise each shard's gradient travels by itself.
        """
        count = self.count
        while count > self.size:
            half = (count + 1) // 2
            if half % self.size:
                return False
            count = half
        return count == self.size

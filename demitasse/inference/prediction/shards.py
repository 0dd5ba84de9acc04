"""Which share of a work is a process's: said by the user, or by whoever has started it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from demitasse.errors import ConfigError

__all__ = ["Shard", "find_shard"]

MOST = 100_000


@dataclass(frozen=True)
class Shard:
    """One of several shares.

    Attributes:
        index: Which, from 0.
        count: How many there are.
        where: What has said so.
    """

    index: int = 0
    count: int = 1
    where: str = "--shard"

    def __post_init__(self) -> None:
        """Check that there is such a share."""
        if not 0 <= self.index < self.count <= MOST:
            message = (
                f"{self.where} says shard {self.index} of {self.count}; shards are counted from 0 "
                f"to one less than their number, which is 1 to {MOST}"
            )
            raise ConfigError(message)

    def part_of(self, total: int) -> range:
        """Return this shard's share of numbers from 0 on: neighbours, as many as others have."""
        return range(self.index * total // self.count, (self.index + 1) * total // self.count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def find_shard(text: str, environment: Mapping[str, str]) -> Shard:
    """Return the shard that a text means.

    Args:
        text: "i/n", "auto", or "auto/n" where the environment says i alone.
        environment: That of the process: variables of MPI, of Slurm and of Kubernetes.

    Raises:
        ConfigError: It means none, or nothing has said which.
    """
    given = re.fullmatch(r"(auto|\d{1,6})(?:/(\d{1,6}))?", text)
    if given is None or (given[1] != "auto" and given[2] is None):
        message = f'a shard is "i/n", "auto" or "auto/n", not {text!r}'
        raise ConfigError(message)
    count = int(given[2]) if given[2] else None
    if given[1] != "auto":
        return Shard(int(given[1]), count or 0)
    found = list(_started(environment))
    several = [one for one in found if one[1] != 1] or found[:1]
    if len(several) > 1:
        names = " and ".join(where for _, _, where in several)
        message = f"{names} both say which shard this is; give --shard i/n"
        raise ConfigError(message)
    if not several:
        message = (
            "nothing says which shard this is: there are no variables of MPI, of a Slurm array or "
            "of a Kubernetes job with indexes; give --shard i/n"
        )
        raise ConfigError(message)
    index, size, where = several[0]
    if count is not None and size is not None and count != size:
        message = f"--shard says {count} shards, {where} says {size}"
        raise ConfigError(message)
    size = size or count
    if size is None:
        message = f"{where} does not say how many shards there are; give --shard auto/n"
        raise ConfigError(message)
    return Shard(index, size, where)


Started = tuple[int, int | None, str]
"""Index, number and who says so; the number is None where that is not said."""


def _started(environment: Mapping[str, str]) -> Iterator[Started]:
    number = _Numbers(environment)
    array = number("SLURM_ARRAY_TASK_ID")
    if array is not None:
        first, step = number("SLURM_ARRAY_TASK_MIN") or 0, number("SLURM_ARRAY_TASK_STEP") or 1
        count = number("SLURM_ARRAY_TASK_COUNT")
        yield (array - first) // step, count, "a Slurm array (SLURM_ARRAY_TASK_ID)"
    job = number("JOB_COMPLETION_INDEX")
    if job is not None:
        yield job, None, "a Kubernetes job (JOB_COMPLETION_INDEX)"
    for rank, size, name in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI"),
        ("PMI_RANK", "PMI_SIZE", "MPI"),
        ("SLURM_PROCID", "SLURM_NTASKS", "srun"),
    ):
        index, count = number(rank), number(size)
        if index is not None and count is not None:
            yield index, count, f"{name} ({rank})"
            return


class _Numbers:
    """Numbers in environment variables."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def __call__(self, name: str) -> int | None:
        text = self._environment.get(name, "").strip()
        if not text:
            return None
        if not text.isdecimal() or len(text) > 9:
            message = f"the variable {name} is {text[:50]!r}, which is no number"
            raise ConfigError(message)
        return int(text)

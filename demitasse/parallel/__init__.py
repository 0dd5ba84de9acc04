"""Training by several processes: who works on what, and how their gradients become one."""

from demitasse.parallel.alone import Single
from demitasse.parallel.communicator import Communicator
from demitasse.parallel.shards import Shards
from demitasse.parallel.team import Alone, Crew, Reduce, Team, first_request

__all__ = [
    "Alone", "Communicator", "Crew", "Reduce", "Shards", "Single", "Team",
    "first_request",
]  # fmt: skip

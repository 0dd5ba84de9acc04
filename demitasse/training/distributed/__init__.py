"""Training by several processes: who works on what, and how their gradients become one."""

from demitasse.training.distributed.alone import Single
from demitasse.training.distributed.communicator import Communicator
from demitasse.training.distributed.shards import Shards
from demitasse.training.distributed.team import AllReduce, Alone, Crew, Team, first_request

__all__ = [
    "AllReduce",
    "Alone",
    "Communicator",
    "Crew",
    "Shards",
    "Single",
    "Team",
    "first_request",
]  # fmt: skip

"""Data-parallel training: processes, their shards of the data, and the mean of their gradients."""

from demitasse.training.distributed.group import (
    AllReduce,
    Communicator,
    DistributedGroup,
    LocalCommunicator,
    Shards,
    SingleProcess,
    WaitTimes,
    WorkerGroup,
    check_settings,
    first_request,
    make_worker_group,
)

__all__ = [
    "AllReduce", "Communicator", "DistributedGroup", "LocalCommunicator", "Shards",
    "SingleProcess", "WaitTimes", "WorkerGroup", "check_settings", "first_request",
    "make_worker_group",
]  # fmt: skip

"""Direct exchange of gradients between GPUs, if NCCL connects them."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from demitasse.backends.collective import DeviceCollective
from demitasse.core.device import Device
from demitasse.core.log import get_logger
from demitasse.errors import ParallelError

if TYPE_CHECKING:
    from demitasse.training.distributed.group import Communicator

log = get_logger(__name__)


def connect_devices(communicator: Communicator, device: Device) -> DeviceCollective | None:
    """Return the group of the devices that processes train on; None if it cannot be made.

    All processes call this. There is no group if a process trains on the host, lacks the library or
    shares a GPU with another process: all arrays then travel through host memory.
    """
    connector, missing, place = device.backend.connector, "", ""
    if connector is not None and not (missing := connector.missing()):
        place = f"{socket.gethostname()} {connector.place()}"
    places = communicator.allgather_bytes(place.encode()[-200:])
    if connector is None:
        return None
    reason = ""
    if not all(places):
        reason = missing or "another process has no GPU or no NCCL"
    elif len(set(places)) < len(places):
        reason = "processes share a GPU, and NCCL needs one GPU for each process"
    if reason:
        if communicator.rank == 0:
            log.warning("Gradients travel through host memory: %s.", reason)
        return None
    uid = b""
    if communicator.rank == 0:
        try:
            uid = connector.new_uid()
        except ParallelError as error:
            log.warning("Gradients travel through host memory: %s.", error)
    uid = communicator.broadcast_object(uid)
    if not uid:
        return None
    group = connector.join(uid, communicator.rank, communicator.size, communicator.timeout)
    if communicator.rank == 0:
        log.info("%d GPUs are connected by %s.", group.size, group.name)
    return group

"""Direct exchange of gradients between GPUs, if NCCL connects them."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from demitasse.backends.collective import Connector, DeviceCollective
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

    Args:
        communicator: The processes; it sends the id of the group to all of them.
        device: Device of this process.
    """
    connector = device.backend.connector
    missing = "" if connector is None else connector.missing()
    place = ""
    if connector is not None and not missing:
        place = f"{socket.gethostname()} {connector.place()}"
    places = communicator.allgather_bytes(place.encode()[-200:])
    if connector is None:
        return None
    if not all(places):
        _warn(communicator, missing or "another process has no GPU or no NCCL")
        return None
    if len(set(places)) < len(places):
        _warn(communicator, "processes share a GPU, and NCCL needs one GPU for each process")
        return None
    uid = communicator.broadcast_object(_new_uid(connector) if communicator.rank == 0 else b"")
    if not uid:
        return None
    group = connector.join(uid, communicator.rank, communicator.size, communicator.timeout)
    if communicator.rank == 0:
        log.info("%d GPUs are connected by %s.", group.size, group.name)
    return group


def _new_uid(connector: Connector) -> bytes:
    """Return the id of a new group; empty if the library fails."""
    try:
        return connector.new_uid()
    except ParallelError as error:
        log.warning("Gradients travel through host memory: %s.", error)
        return b""


def _warn(communicator: Communicator, reason: str) -> None:
    if communicator.rank == 0:
        log.warning("Gradients travel through host memory: %s.", reason)

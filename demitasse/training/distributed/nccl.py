"""GPUs that train together exchange gradients with each other, where they can."""

from __future__ import annotations

import socket

from demitasse.backends.collective import Connector, DeviceCollective
from demitasse.core.device import Device
from demitasse.core.log import get_logger
from demitasse.errors import ParallelError
from demitasse.training.distributed.communicator import Communicator

__all__ = ["connected"]

log = get_logger(__name__)


def connected(communicator: Communicator, device: Device) -> DeviceCollective | None:
    """Return the group of the devices that processes train on, or None where they have no such.

    All processes call this. They have none where one trains on the host, lacks the library or uses
    the same GPU as another: all arrays then travel by the host's memory.

    Args:
        communicator: The processes; it carries the group's name to all of them.
        device: The device of this one.
    """
    connector = device.backend.connector
    why = "" if connector is None else connector.missing()
    here = "" if connector is None or why else f"{socket.gethostname()} {connector.place()}"
    places = communicator.agree(here.encode()[-200:])
    if connector is None:
        return None
    if not all(places):
        _warn(communicator, why or "another process has no GPU or no NCCL")
        return None
    if len(set(places)) < len(places):
        _warn(communicator, "processes share a GPU, and NCCL wants one for each")
        return None
    uid = communicator.share(_uid(connector) if communicator.rank == 0 else b"")
    if not uid:
        return None
    group = connector.join(uid, communicator.rank, communicator.size, communicator.timeout)
    if communicator.rank == 0:
        log.info("%d GPUs are connected by %s.", group.size, group.name)
    return group


def _uid(connector: Connector) -> bytes:
    """Return a new group's name; nothing where the library gives none."""
    try:
        return connector.new_uid()
    except ParallelError as error:
        log.warning("Gradients travel by the host's memory: %s.", error)
        return b""


def _warn(communicator: Communicator, why: str) -> None:
    if communicator.rank == 0:
        log.warning("Gradients travel by the host's memory: %s.", why)

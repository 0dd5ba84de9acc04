"""Backends that installed packages add by entry points of the group ``demitasse.backends``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from demitasse.backends.base import Backend
from demitasse.core.log import get_logger
from demitasse.errors import DeviceError, ErrorCode

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "demitasse.backends"


def entry_points_by_name() -> dict[str, list[EntryPoint]]:
    """Return the entry points by name; several if packages define one name differently."""
    from importlib.metadata import entry_points  # a slow import, only needed here

    points: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        same = points.setdefault(point.name, [])
        if all(other.value != point.value for other in same):
            same.append(point)
    return points


def load(name: str, points: Sequence[EntryPoint]) -> type[Backend]:
    """Return the class of a name's only entry point.

    Raises:
        DeviceError: There are several, or it cannot be loaded: names the package.
    """
    if len(points) > 1:
        message = (
            f"{len(points)} packages have a backend {name!r}: "
            f"{', '.join(map(distribution, points))}; uninstall all but one"
        )
        raise DeviceError(message, code=ErrorCode.DUPLICATE, backend=name)
    [point] = points
    try:
        return class_of(point.load())
    except Exception as error:  # whatever somebody else's code raises
        message = (
            f"the backend {name!r} of {distribution(point)} cannot be loaded: its entry point "
            f"'{point.name} = {point.value}' raised {type(error).__name__}: {error}"
        )
        raise DeviceError(message, code=ErrorCode.FAILED, backend=name) from error


def class_of(entry: object) -> type[Backend]:
    """Return an entry that is a class, or the class that it returns.

    Raises:
        TypeError: It is neither.
    """
    kind = entry() if callable(entry) and not isinstance(entry, type) else entry
    if not (isinstance(kind, type) and issubclass(kind, Backend)):
        message = f"a subclass of demitasse.backends.base.Backend is needed, not {kind!r}"
        raise TypeError(message)
    return kind


def distribution(point: EntryPoint) -> str:
    """Return name and version of the package that an entry point belongs to."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unnamed package"


@cache
def warn_once(message: str) -> None:
    """Log a warning that was not logged before."""
    get_logger(__name__).warning(message)

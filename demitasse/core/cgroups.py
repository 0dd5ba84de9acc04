"""The control groups that a process is in, by which a container or a job is limited on Linux.

Source: the kernel's documentation, ``cgroup-v1/cgroups.rst`` and ``cgroup-v2.rst``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["groups", "lines"]

MOUNT = Path("sys/fs/cgroup")


def groups(controller: str, root: Path) -> Iterator[tuple[int, Path]]:
    """Yield the version and the folder of each group that limits this process, inner ones first.

    Args:
        controller: What is limited: "cpu" or "memory".
        root: Where ``proc`` and ``sys`` are.
    """
    mount = root / MOUNT
    for line in lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from ((2, group) for group in _upwards(mount, path))
        elif controller in controllers.split(","):
            for name in dict.fromkeys((controller, controllers)):
                yield from ((1, group) for group in _upwards(mount / name, path))


def lines(file: Path) -> list[str]:
    """Return the lines of a file of the kernel; none where it is not there."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """Yield a group and those it is in.

    Within a container the path may be that of the host, which is not there: then the container's
    own group is at the mount point.
    """
    group = mount / path.strip("/")
    for place in (group, *group.parents):
        if not place.is_relative_to(mount):
            return
        yield place

"""What the upgrades tell their caller."""

__all__ = ["Lines", "Problem"]

Lines = list[int | None]
"""Line of each layer, or None if unknown."""


class Problem(str):
    """A note about a dropped item."""

    __slots__ = ()

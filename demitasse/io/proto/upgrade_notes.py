"""What the upgrades tell their caller."""

__all__ = ["Lines", "Problem"]

Lines = list[int | None]
"""For each layer the line it began on, where that is known."""


class Problem(str):
    """A note about something that the upgrade had to leave out."""

    __slots__ = ()

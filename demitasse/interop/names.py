"""Unique names of nodes, layers, values and variables."""


def unique_name(wish: str, taken: set[str]) -> str:
    """Return a name that is not taken, and take it; ``_2``, ``_3``, ... distinguish equal ones."""
    name, number = wish, 1
    while name in taken:
        number += 1
        name = f"{wish}_{number}"
    taken.add(name)
    return name

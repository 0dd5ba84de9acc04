"""Tables in markdown."""

__all__ = ["number", "table"]


def table(head: list[str], lines: list[list[str]]) -> str:
    """Return a table; each line has as many cells as the head."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def number(value: float | None, form: str) -> str:
    """Return a number in a form, "-" where there is none."""
    return "-" if not value else form.format(value)

"""How much of something there is in a second, for people."""

__all__ = ["rate"]


def rate(value: float) -> str:
    """Write a rate with four digits or all before its point, without a power of ten."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"

"""The libraries that numpy multiplies matrices with."""

from __future__ import annotations

from functools import cache
from typing import Any

__all__ = ["blas"]


@cache
def blas() -> list[Any]:
    """Return numpy's BLAS libraries as they are controlled; none where that cannot be done."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return []
    controller = ThreadpoolController().select(user_api="blas", internal_api="openblas")
    return list(controller.lib_controllers)

"""TOML files, within memory in proportion to their size."""

from __future__ import annotations

import tomllib
from typing import Any

__all__ = ["parse_toml"]

TABLE = 1000
"""Bytes of memory of a parsed table."""

SPARE, FACTOR = 16 << 20, 20
"""Bytes of memory that tables may take in any case, and times the size of the file."""


def parse_toml(content: bytes) -> dict[str, Any]:
    """Return the table in the bytes of a TOML file.

    Raises:
        ValueError: The bytes are no TOML, or nearly all of them are headers of tables.
        RecursionError: Values are nested too deeply.
    """
    tables = content.count(b"\n[") + content.count(b".")
    if tables * TABLE > SPARE + FACTOR * len(content):
        message = f"got up to {tables} tables in {len(content)} bytes, expected fewer"
        raise ValueError(message)
    return tomllib.loads(content.decode())

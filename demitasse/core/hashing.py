"""Hashes of bytes and files, by the code that is built into Python.

``hashlib`` and ``hmac`` load OpenSSL, which takes 4 MiB of memory per process.

Source: RFC 7693, The BLAKE2 Cryptographic Hash and Message Authentication Code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash

try:
    from _blake2 import blake2b
except ImportError:  # a Python built without it
    from hashlib import blake2b

BYTES = 32  # size of a digest, of a keyed hash and of its key


def digest(content: bytes) -> str:
    """Return the BLAKE2 hash in hexadecimal digits."""
    return blake2b(content, digest_size=BYTES).hexdigest()


def keyed_hash(key: bytes, content: bytes) -> bytes:
    """Return the keyed BLAKE2 hash."""
    return blake2b(content, digest_size=BYTES, key=key).digest()


def same_keyed_hash(key: bytes, one: bytes, other: bytes) -> bool:
    """Compare two keyed hashes; the time taken is independent of where they differ."""
    return keyed_hash(key, one) == keyed_hash(key, other)


def sha256(content: bytes = b"") -> _Hash:
    """Return an updatable SHA-256 hash, the kind that files on disk record."""
    import hashlib  # loads OpenSSL

    return hashlib.sha256(content)

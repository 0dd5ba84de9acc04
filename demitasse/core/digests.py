"""Digests and seals of bytes, by the code that Python itself brings for them.

``hashlib`` and ``hmac`` load OpenSSL, which takes 4 MiB of a process; a process that computes has
no other use for it.

Source: RFC 7693, The BLAKE2 Cryptographic Hash, whose digests take a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash

try:
    from _blake2 import blake2b
except ImportError:  # a Python that was built without it
    from hashlib import blake2b

__all__ = ["BYTES", "digest", "equal", "seal", "sha256"]

BYTES = 32
"""Of a digest, of a seal and of the key that seals are made with."""


def digest(content: bytes) -> str:
    """Return what bytes are known by, in hexadecimal digits."""
    return blake2b(content, digest_size=BYTES).hexdigest()


def seal(key: bytes, content: bytes) -> bytes:
    """Return what only who has the key can make of these bytes."""
    return blake2b(content, digest_size=BYTES, key=key).digest()


def equal(key: bytes, one: bytes, other: bytes) -> bool:
    """Whether two seals are equal; how long that takes tells nothing of where they differ."""
    return seal(key, one) == seal(key, other)


def sha256(content: bytes = b"") -> _Hash:
    """Return SHA-256 of bytes, to which more can be added, for what lasting files hold."""
    import hashlib  # loads OpenSSL

    return hashlib.sha256(content)

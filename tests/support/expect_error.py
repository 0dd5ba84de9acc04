"""Expected errors: by type, code, details and the names they mention, never by their prose."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from demitasse.errors import DemitasseError

__all__ = ["expect_error", "expect_warning"]


@contextmanager
def expect_error(
    kind: type[BaseException],
    code: str | None = None,
    *,
    mentions: str | list[str] = (),
    place: str | None = None,
    **details: object,
) -> Iterator[Any]:
    """Fail unless the block raises this error; give pytest's ``ExceptionInfo``.

    Args:
        kind: Type of the exception.
        code: Its ``ErrorCode``, for an error of ours.
        mentions: Names and values that the message must contain: of layers, blobs, fields, files,
            numbers, commands. No sentences: messages may change.
        place: Start of the error's place.
        details: Entries that the error's ``details`` must have.
    """
    __tracebackhide__ = True
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    if code is not None:
        assert isinstance(error, DemitasseError), f"{kind.__name__} has no code"
        assert error.code == code, f"code {error.code!r}, expected {code!r}: {error}"
    if place is not None:
        assert error.place.startswith(place), f"place {error.place!r}, expected {place!r}"
    for name, value in details.items():
        assert error.details.get(name) == value, f"{name} in {error.details}, expected {value!r}"
    _check_mentions(str(error), mentions)


@contextmanager
def expect_warning(
    kind: type[Warning], *, mentions: str | list[str] = ()
) -> Iterator[pytest.WarningsRecorder]:
    """Fail unless the block warns so; ``mentions`` as for :func:`expect_error`."""
    __tracebackhide__ = True
    with pytest.warns(kind) as caught:
        yield caught
    texts = [str(one.message) for one in caught if issubclass(one.category, kind)]
    names = [mentions] if isinstance(mentions, str) else list(mentions)
    assert any(all(name in text for name in names) for text in texts), f"{names} in none of {texts}"


def _check_mentions(text: str, mentions: str | list[str]) -> None:
    __tracebackhide__ = True
    for name in [mentions] if isinstance(mentions, str) else mentions:
        # errors of the system repeat a path as Python writes it, with two backslashes for one
        assert name in text or repr(name)[1:-1] in text, f"{name!r} is not mentioned: {text}"

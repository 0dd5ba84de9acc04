"""Failures of the command line: by exit code, error code and names, never by their prose."""

from click.testing import Result

from demitasse.errors import DemitasseError

__all__ = ["failed_with"]


def failed_with(
    result: Result,
    exit_code: int,
    code: str,
    *,
    mentions: str | list[str] = (),
    **details: object,
) -> None:
    """Fail unless a command ended with this exit code because of an error with this code.

    Args:
        result: The finished command, from the fixture ``run``.
        exit_code: Its exit code.
        code: The ``ErrorCode`` of the error that ended the command.
        mentions: Names and values that standard error must contain.
        details: Entries that the error's ``details`` must have.
    """
    __tracebackhide__ = True
    assert result.exit_code == exit_code, result.stderr
    error = result.error
    assert isinstance(error, DemitasseError), repr(error)
    assert error.code == code, f"code {error.code!r}, expected {code!r}: {error}"
    for name, value in details.items():
        assert error.details.get(name) == value, f"{name} in {error.details}, expected {value!r}"
    for name in [mentions] if isinstance(mentions, str) else mentions:
        assert name in result.stderr, f"{name!r} is not mentioned: {result.stderr}"

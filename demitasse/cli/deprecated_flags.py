"""Old flags and old values of flags, which work for one more release and are warned of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from demitasse.cli.spelling import plain_name

__all__ = ["RenamedOption", "current_flags"]


class RenamedOption(click.Option):
    """Option with an old flag, or old values, that work but that help does not show.

    Args:
        old: The old flag, e.g. "--survive".
        old_values: New value of each old value.
    """

    def __init__(
        self, *args: Any, old: str = "", old_values: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.old, self.old_values = old, dict(old_values or {})


def current_flags(
    params: Sequence[click.Parameter], args: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Replace old flags and old values by the present ones.

    Args:
        params: Parameters of the command.
        args: Arguments, flags with two dashes; what follows a lone ``--`` is left alone.

    Returns:
        The arguments, and a warning for each old flag or value.
    """
    renamed = [one for one in params if isinstance(one, RenamedOption)]
    options = {plain_name(flag[2:]): one for one in renamed for flag in (one.old, *one.opts)}
    end = list(args).index("--") if "--" in args else len(args)
    out: list[str] = []
    warnings: list[str] = []
    before: RenamedOption | None = None
    for arg in args[:end]:
        flag, equals, value = arg.partition("=")
        name = plain_name(flag[2:]) if flag.startswith("--") else ""
        option = options.get(name) if name else None
        if option is None:
            out.append(arg if before is None else _current_value(before, arg, warnings))
            before = None
            continue
        new = option.opts[0]
        if name == plain_name(option.old[2:]):
            warnings.append(f"{flag} is deprecated and goes with the next release; use {new}")
            flag = new
        out.append(f"{flag}={_current_value(option, value, warnings)}" if equals else flag)
        before = None if equals else option
    return out + list(args[end:]), warnings


def _current_value(option: RenamedOption, value: str, warnings: list[str]) -> str:
    new = option.old_values.get(value)
    if new is None:
        return value
    flag = option.opts[0]
    warnings.append(
        f"{flag} {value} is deprecated and goes with the next release; use {flag} {new}"
    )
    return new

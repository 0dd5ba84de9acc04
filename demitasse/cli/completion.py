"""What the shell offers where a flag takes neither a file nor one of a few words."""

from __future__ import annotations

from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

__all__ = ["complete_codes", "complete_devices", "complete_files", "complete_loggers"]


def complete_devices(
    context: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer the devices that are here; of names with commas between them, the last goes on."""
    from demitasse.core.device import available_devices

    del context, param
    before, comma, last = incomplete.rpartition(",")
    return _beginning(last, available_devices(), before + comma)


def complete_files(
    context: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Let the shell offer files."""
    del context, param
    return [CompletionItem(incomplete, type="file")]


def complete_codes(
    context: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer the codes of what ``lint`` finds."""
    from demitasse.lint.codes import CODES

    del context, param
    return _beginning(incomplete, list(CODES))


def complete_loggers(
    context: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer the kinds of loggers, each with its colon."""
    from demitasse.training.tracking.targets import KINDS

    del context, param
    return _beginning(incomplete, [f"{kind}:" for kind in KINDS])


def _beginning(incomplete: str, names: Sequence[str], before: str = "") -> list[CompletionItem]:
    return [CompletionItem(before + name) for name in names if name.startswith(incomplete)]

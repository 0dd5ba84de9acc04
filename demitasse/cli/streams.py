"""Standard streams that cannot be written to: closed, or on a disk that is full."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from typing import Literal

import click

__all__ = ["leave_unsaid", "of_stdout", "stdout_failed", "tell"]


def tell(text: str) -> None:
    """Print text on standard error, if that can be written to; the work goes on without it."""
    with suppress(OSError):
        click.echo(text, err=True)


def leave_unsaid(name: Literal["stdout", "stderr"]) -> None:
    """Let what a stream still holds go nowhere: Python would fail at the end otherwise."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, getattr(sys, name).fileno())
        os.close(nowhere)


def stdout_failed(error: BaseException) -> bool:
    """Whether an error is that standard output cannot be written to, where ``click`` prints to it.

    What is printed on standard error is told if it can be told (``tell``), and fails nowhere.
    """
    if not isinstance(error, OSError) or error.filename is not None:
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_code is click.echo.__code__


def of_stdout(error: BaseException) -> str:
    """Return the message for standard output that cannot be written to; what it holds is lost."""
    leave_unsaid("stdout")
    return f"standard output cannot be written to: {getattr(error, 'strerror', None) or error}"

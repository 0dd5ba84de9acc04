"""The flags of ``consistency`` and ``diff`` about what is allowed and what is shown of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from demitasse.cli.exits import FAILED
from demitasse.cli.options import FILE, json_option
from demitasse.cli.output import print_json, show

if TYPE_CHECKING:
    import numpy as np

    from demitasse.cli.agreement import Agreement
    from demitasse.testing.comparison import Comparison

__all__ = ["Shown", "agreement_options"]


class Comparable(Protocol):
    """A file or a net that can be held against what it was made from."""

    def compare(self, inputs: Mapping[str, np.ndarray] | None, seed: int) -> Comparison:
        """Run both on the same inputs."""


@dataclass(frozen=True)
class Shown:
    """What the flags say.

    Attributes:
        rtol: Largest difference allowed; None for that of the net's numbers.
        worst: Whether layers that differ most come first.
        details: Whether every array has a row.
        junit: A file for JUnit's XML.
        html: A file for a page.
        as_json: Whether JSON is printed in place of a table.
    """

    rtol: float | None
    worst: bool
    details: bool
    junit: Path | None
    html: Path | None
    as_json: bool

    def show(self, ctx: click.Context, result: Agreement) -> None:
        """Print and write a result; exit with 1 where it is no agreement."""
        self._write_files(result)
        if self.as_json:
            print_json(result.as_dict())
        else:
            show(result.text(worst_first=self.worst, details=self.details))
        if not result.agree:
            ctx.exit(FAILED)

    def show_made(
        self, ctx: click.Context, text: str, facts: dict[str, Any], check: Agreement | None
    ) -> None:
        """Print what was made, and the result of a check; exit with 1 where it is no agreement.

        Args:
            ctx: The verb's.
            text: What was made.
            facts: The same for JSON.
            check: The result; None where nobody asked for one.
        """
        if self.as_json:
            print_json(facts | {"check": None if check is None else check.as_dict()})
        else:
            show(text)
        if check is not None:
            if not self.as_json:
                show("\n" + check.text(worst_first=self.worst, details=self.details))
            self._write_files(check)
            if not check.agree:
                ctx.exit(FAILED)

    def checked(
        self, made: Comparable, name: str, dtype: str, inputs: Path | None, seed: int
    ) -> Agreement:
        """Run what was made and what it was made from on the same inputs.

        Args:
            made: What was made.
            name: The other framework's file.
            dtype: Numbers that it computes in.
            inputs: A .npz file of inputs; None for random ones.
            seed: What random ones are made from.
        """
        from demitasse.cli.agreement import Agreement
        from demitasse.testing.others.recorded import read_arrays

        found = made.compare(None if inputs is None else read_arrays(inputs), seed)
        return Agreement(name, found, [], dtype, self.rtol, title="Check")

    def _write_files(self, result: Agreement) -> None:
        if self.junit is not None:
            result.write_junit(self.junit)
        if self.html is not None:
            result.write_page(self.html)


def agreement_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags; the verb gets ``shown``."""

    @click.option(
        "--rtol",
        type=click.FloatRange(min=0),
        help="Largest difference allowed, relative to an array's largest value. [default: 1e-4]",
    )
    @click.option("--worst", is_flag=True, help="Show the layers that differ most first.")
    @click.option("--details", is_flag=True, help="Show every array, not one row for each layer.")
    @click.option("--junit", type=FILE, help="Write the result as JUnit's XML, for build servers.")
    @click.option("--html", type=FILE, help="Write the result as a page with a chart.")
    @json_option
    @wraps(function)
    def with_shown(
        *args: Any,
        rtol: float | None,
        worst: bool,
        details: bool,
        junit: Path | None,
        html: Path | None,
        as_json: bool,
        **kwargs: Any,
    ) -> Any:
        return function(*args, shown=Shown(rtol, worst, details, junit, html, as_json), **kwargs)

    return with_shown

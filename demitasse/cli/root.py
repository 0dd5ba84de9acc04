"""The command ``demitasse``: sections of commands, each command imported when it is used."""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from demitasse import __version__
from demitasse.cli import errors
from demitasse.cli.command import LazyGroup
from demitasse.cli.commands import MODULES, SECTIONS
from demitasse.cli.gflags import double_dashes, normalize_name
from demitasse.core.paths import reason_of

COMMANDS = tuple(name for commands in SECTIONS.values() for name in commands)
"""Commands that ``--help`` lists, in its order."""


class Root(LazyGroup):
    """The commands of ``demitasse``; tools of Caffe that no section lists are hidden."""

    modules, listed = MODULES, COMMANDS

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accept flags with one dash, too."""
        try:
            args = double_dashes(args)
        except (OSError, ValueError) as error:
            message = f"cannot read a file of flags: {reason_of(error)}"
            raise click.UsageError(message, ctx) from error
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; Ctrl-C during imports and parsing exits as it does later."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            with errors.handle_errors():
                raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section."""
        for title, names in SECTIONS.items():
            self.write_section(ctx, formatter, title, names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; a removed tool of Caffe names the command in its place."""
        found = super().get_command(ctx, cmd_name)
        if found is None:
            from demitasse.cli.commands.caffe import removed_tool

            return removed_tool(cmd_name)
        return found


@click.group(
    cls=Root,
    name="demitasse",
    context_settings={
        "help_option_names": ["--help", "-h"],
        "token_normalize_func": normalize_name,
        "max_content_width": 100,
    },
)
@click.version_option(__version__, message="demitasse %(version)s")
def cli() -> None:
    """Train, test, time and inspect Caffe's nets.

    Flags may be written as in Caffe: -solver FILE, -solver=FILE, --solver FILE, --solver=FILE.
    """


def run(args: Sequence[str] | None) -> NoReturn:
    """Run the command line and exit with its code, even if no stream can be written."""
    errors.note_arguments(sys.argv[1:] if args is None else args)
    try:
        name = None if args is None else "demitasse"  # for usage; by default as it was started
        code: Any = cli.main(args, name, standalone_mode=False)
    except click.ClickException as error:
        error.message = errors.printable(error.message)  # type: ignore[misc]  # as printed
        try:
            error.show()
        except OSError:
            errors.discard_stream("stderr")
        sys.exit(error.exit_code)
    except click.Abort:
        errors.print_stderr("Aborted!")
        sys.exit(errors.FAILED)
    except OSError as error:  # from --help and --version; commands handle their own errors
        if not errors.stdout_failed(error):
            raise
        errors.print_stderr(f"error: {errors.stdout_message(error)}")
        sys.exit(errors.FAILED)
    sys.exit(code)

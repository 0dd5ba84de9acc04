"""The command ``demitasse`` itself: its verbs, each imported when it is used."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from demitasse import __version__
from demitasse.cli.exits import FAILED
from demitasse.cli.replaced import REPLACED, replaced
from demitasse.cli.spelling import plain_name, two_dashes
from demitasse.cli.streams import leave_unsaid, of_stdout, stdout_failed, tell
from demitasse.core.text import nearest

__all__ = ["VERBS", "Root", "cli", "run"]

VERBS = (
    "train",
    "test",
    "time",
    "bench",
    "largest_batch",
    "device_query",
    "consistency",
    "diff",
    "run",
    "predict",
    "serve",
    "card",
    "classify",
    "detect",
    "summary",
    "draw_net",
    "weights",
    "export",
    "import",
    "convert",
    "convert_imageset",
    "convert_annoset",
    "convert_mnist_data",
    "convert_mnist_siamese_data",
    "convert_cifar_data",
    "compute_image_mean",
    "extract_features",
    "resize_and_crop_images",
    "get_image_size",
    "upgrade",
    "upgrade_net_proto_text",
    "upgrade_net_proto_binary",
    "upgrade_solver_proto_text",
    "report",
    "parse_log",
    "extract_seconds",
    "plot_training_log",
    "caffe_shims",
    "lint",
    "explain",
    "example",
    "doctor",
    "trust",
    "version",
)
"""Verbs in the order of ``--help``; each is ``command`` in the module of its name."""

MODULES = {"import": "import_model"}
"""Verbs whose name no module can have."""


class Root(click.Group):
    """A group whose verbs are modules of ``demitasse.cli.verbs``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take flags with one dash, too."""
        try:
            args = two_dashes(args)
        except (OSError, ValueError) as error:
            message = f"a file of flags cannot be read: {error}"
            raise click.UsageError(message, ctx) from error
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; Ctrl-C while it is imported or reads its flags ends as it does later."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            from demitasse.cli.exits import INTERRUPTED, Fault

            told = "interrupted"
            raise Fault(told, INTERRUPTED) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; for one that there is not, name the nearest."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = nearest(args[0], VERBS)
            if not near:
                raise
            message = f"{error.message} Did you mean {near[0]!r}?"
            raise click.UsageError(message, ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs with their first sentences, whole: names of some are long."""
        verbs = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, verb.get_short_help_str(limit=200)) for name, verb in verbs if verb]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs."""
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb."""
        del ctx
        if cmd_name in REPLACED:
            return replaced(cmd_name)
        if cmd_name not in VERBS:
            return None
        module = MODULES.get(cmd_name, cmd_name)
        command: click.Command = import_module(f"demitasse.cli.verbs.{module}").command
        return command


@click.group(
    cls=Root,
    name="demitasse",
    context_settings={
        "help_option_names": ["--help", "-h"],
        "token_normalize_func": plain_name,
        "max_content_width": 100,
    },
)
@click.version_option(__version__, message="demitasse %(version)s")
def cli() -> None:
    """Train, test, time and look into Caffe's nets.

    Flags may be written as in Caffe: -solver FILE, -solver=FILE, --solver FILE, --solver=FILE.
    """


def run(args: Sequence[str] | None) -> NoReturn:
    """Run the command line and exit with its code, also where nothing can be told of it."""
    try:
        code: Any = cli.main(args, standalone_mode=False)
    except click.ClickException as error:
        _show(error)
        sys.exit(error.exit_code)
    except click.Abort:
        tell("Aborted!")
        sys.exit(FAILED)
    except OSError as error:  # of --help and --version; verbs have their own
        if not stdout_failed(error):
            raise
        tell(f"error: {of_stdout(error)}")
        sys.exit(FAILED)
    sys.exit(code)


def _show(error: click.ClickException) -> None:
    """Print an error, if that can be done."""
    try:
        error.show()
    except OSError:
        leave_unsaid("stderr")

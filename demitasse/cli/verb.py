"""What all verbs share: flags of logging and imports, and failures that become exit codes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from demitasse.cli.deprecated_flags import current_flags
from demitasse.cli.exits import faults
from demitasse.cli.log_files import open_log
from demitasse.cli.spelling import plain_name, plain_switches

__all__ = ["Verb"]

GLOG_LEVELS = ("info", "warning", "error", "critical")
"""Levels in glog's order, which ``--minloglevel`` counts in."""

CAFFE = {"train", "test", "time"}
"""Verbs that Caffe's program ``caffe`` has, and that log to files as it does."""

OLD_FLAGS = f"{__name__}.old_flags"
"""Key of the warnings of old flags in a context's ``meta``."""


class Verb(click.Command):
    """A command with the flags that all have: what is logged, and what is imported."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _shared_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take switches as gflags does, too, and old names of flags."""
        args, ctx.meta[OLD_FLAGS] = current_flags(self.params, args)
        names = [
            plain_name(option.removeprefix("--"))
            for param in self.params
            if isinstance(param, click.Option) and param.is_flag and not param.secondary_opts
            for option in param.opts
        ]
        return super().parse_args(ctx, plain_switches(args, names))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb: log to standard error, turn exceptions into exit codes."""
        names = ("log_level", "log_format", "log_dir", "minloglevel", "plugins", "import")
        options = {name: ctx.params.pop(name) for name in names}
        with faults(), ExitStack() as stack:
            modules, old = options.pop("plugins"), options.pop("import")
            _start(stack, **options, as_caffe=ctx.info_name in CAFFE)
            if old:
                _warn_of_old_flag()
            for warning in ctx.meta.get(OLD_FLAGS, ()):
                logging.getLogger(__name__).warning(warning)
            _extend(stack, (*modules, *old))
            with faults():  # while the log level is still known
                return super().invoke(ctx)


def _shared_options() -> list[click.Parameter]:
    levels = click.Choice(["debug", "info", "warning", "error"], case_sensitive=False)
    return [
        click.Option(["--log_level"], type=levels, help="Least severe level that is logged."),
        click.Option(
            ["--log_format"],
            type=click.Choice(["glog", "text", "json"]),
            default="glog",
            help="Form of log lines on standard error; glog is what Caffe's log parsers read.",
        ),
        click.Option(
            ["--log_dir"],
            type=click.Path(path_type=Path, file_okay=False),
            help="Folder for a log file, in addition to standard error.",
        ),
        click.Option(["--minloglevel"], type=click.IntRange(0, 3), hidden=True),
        click.Option(
            ["--plugins"],
            multiple=True,
            metavar="MODULE|FILE.py",
            help="Module or file that adds layers and backends; repeat the flag for several.",
        ),
        click.Option(["--import"], multiple=True, hidden=True),
    ]


def _warn_of_old_flag() -> None:
    from demitasse.core.deprecated import log_once

    log_once(logging.getLogger(__name__), "--import", "--plugins")


def _extend(stack: ExitStack, modules: Sequence[str]) -> None:
    """Import what the flag and the settings name, so that every verb knows the layers there."""
    from demitasse.core.config import settings
    from demitasse.core.plugins import import_plugins

    import_plugins()
    if modules:
        stack.enter_context(settings.override(plugins=modules))
        import_plugins()


def _start(
    stack: ExitStack,
    log_level: str | None,
    log_format: str,
    log_dir: Path | None,
    minloglevel: int | None,
    as_caffe: bool,
) -> None:
    """Log until the stack is closed."""
    from demitasse.core.config import settings
    from demitasse.core.log import start_logging, stop_logging
    from demitasse.errors import ConfigError

    if log_level is None and minloglevel is not None:
        log_level = GLOG_LEVELS[minloglevel]
    start_logging(log_level or "warning", log_format)  # settings may be warned of
    stack.callback(stop_logging)
    try:
        for name in settings.names():
            settings.find(name)
    except ConfigError as error:  # told by the user and not by a model: wrong usage
        raise click.UsageError(str(error)) from error
    if log_level is not None:
        stack.enter_context(settings.override(log_level=log_level))
    shown = start_logging(log_level, log_format)
    if (file := open_log(log_dir, as_caffe)) is not None:
        file.setFormatter(shown.formatter)
        logger = logging.getLogger("demitasse")
        logger.addHandler(file)
        stack.callback(file.close)
        stack.callback(logger.removeHandler, file)

"""Commands with the flags that all commands share: logging, log files, imports of plugins.

Source: glog, ``src/logging.cc`` (names of log files, and the link to the newest).
"""

import getpass
import logging
import os
import re
import socket
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import click

from demitasse.cli.errors import check_memory_limits, handle_errors, print_stderr
from demitasse.cli.gflags import (
    RenamedOption,
    current_flags,
    drop_unused,
    expand_switches,
    normalize_name,
    split_flags,
)
from demitasse.core.text import nearest

CAFFE = {"train", "test", "time"}
"""Commands of Caffe's program ``caffe``, which log to files as Caffe does."""

OLD_FLAGS = f"{__name__}.old_flags"
"""Key of the warnings about old flags in a context's ``meta``."""

ARGUMENTS = f"{__name__}.arguments"
"""Key of the arguments in a context's ``meta``, spelled for click."""

DEVICES = re.compile(r"\w+(:\w+)?(,\w+(:\w+)?)*")
"""Names of devices, with commas between them."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    modules: ClassVar[Mapping[str, str]] = {}
    """Command -> its module in ``demitasse.cli.commands``."""

    listed: ClassVar[Sequence[str]] = ()
    """Commands that ``--help`` lists, in this order; all if empty."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names of the listed commands."""
        return list(self.listed or self.modules)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; return None for an unknown name."""
        if cmd_name not in self.modules:
            return None
        module = import_module(f"demitasse.cli.commands.{self.modules[cmd_name]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; an error about an unknown command suggests the nearest name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = nearest(args[0], tuple(self.modules))
            if not near:
                raise
            message = f"{error.message} Did you mean {near[0]!r}?"
            raise click.UsageError(message, ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, each with its whole first sentence."""
        self.write_section(ctx, formatter, "Commands", self.list_commands(ctx))

    def write_section(
        self, ctx: click.Context, formatter: click.HelpFormatter, title: str, names: Iterable[str]
    ) -> None:
        """Write a section of the help."""
        commands = ((name, self.get_command(ctx, name)) for name in names)
        rows = [(name, one.get_short_help_str(limit=200)) for name, one in commands if one]
        with formatter.section(title):
            formatter.write_dl(rows)


class Command(click.Command):
    """A command with the shared flags of logging and plugins."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _shared_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accept switches as gflags does, and old names of flags."""
        args, rest = split_flags(args)
        args, ctx.meta[OLD_FLAGS] = current_flags(self.params, args)
        if ctx.info_name in CAFFE:
            args, unused = drop_unused(args, self.params)
            ctx.meta[OLD_FLAGS] += unused
        args = expand_switches(args, _switches(self)) + rest
        ctx.meta[ARGUMENTS] = tuple(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command: log to standard error, turn exceptions into exit codes."""
        names = ("log_level", "log_format", "log_dir", "minloglevel")
        options = {name: ctx.params.pop(name) for name in names}
        plugins = ctx.params.pop("plugins")
        with handle_errors(), ExitStack() as stack:
            check_memory_limits()
            from demitasse.core.config import settings
            from demitasse.core.plugins import import_plugins

            _start_logging(stack, **options, as_caffe=ctx.info_name in CAFFE)
            for warning in ctx.meta.get(OLD_FLAGS, ()):
                logging.getLogger(__name__).warning(warning)
            import_plugins()  # of the settings, then of the flag
            if plugins:
                stack.enter_context(settings.override(plugins=plugins))
                import_plugins()
            with handle_errors():  # the stack resets the log level, which decides on tracebacks
                return super().invoke(ctx)


def given_flags(ctx: click.Context, leave_out: Collection[str] = ()) -> list[str]:
    """Return the flags of a command line as words, e.g. to repeat them in another command."""
    found, _, _ = ctx.command.make_parser(ctx).parse_args(list(ctx.meta[ARGUMENTS]))
    words: list[str] = []
    for param in ctx.command.params:
        if not isinstance(param, click.Option) or param.name in {None, *leave_out}:
            continue
        flag, values = param.opts[0], found.get(param.name, [])
        for value in values if isinstance(values, list) else [values]:
            if param.is_flag:
                words.append(flag)
            elif str(value).startswith("-") or not value:
                words.append(f"{flag}={value}")
            else:
                words += [flag, str(value)]
    return words


def _switches(command: click.Command) -> list[str]:
    return [
        normalize_name(name.removeprefix("--"))
        for one in command.params
        if isinstance(one, click.Option) and one.is_flag and not one.secondary_opts
        for name in one.opts
    ]


class MultiValueCommand(Command):
    """A command with flags that take several words: ``--devices cpu numpy``."""

    multi_value: ClassVar[dict[str, re.Pattern[str]]] = {"--devices": DEVICES}
    """Flag -> pattern of its words; the first word without a match ends the list."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Join the words of each list by commas."""
        joined: list[str] = []
        rest = list(args)
        while rest:
            arg = rest.pop(0)
            if arg in self.multi_value:
                words = []
                while rest and self.multi_value[arg].fullmatch(rest[0]):
                    words.append(rest.pop(0))
                arg = f"{arg}={','.join(words)}"
            joined.append(arg)
        return super().parse_args(ctx, joined)


def _shared_options() -> list[click.Parameter]:
    levels = click.Choice(["debug", "info", "warning", "error"], case_sensitive=False)
    return [
        click.Option(["--log_level"], type=levels, help="Log messages of this level and above."),
        click.Option(
            ["--log_format"], type=click.Choice(["glog", "text", "json"]), default="glog",
            help="Format of log lines on standard error; Caffe's log parsers read glog.",
            show_default=True,
        ),
        click.Option(
            ["--log_dir"], type=click.Path(path_type=Path, file_okay=False),
            help="Also write a log file to this folder.",
        ),
        click.Option(["--minloglevel"], type=click.IntRange(0, 3), hidden=True),
        RenamedOption(
            ["--plugins"], old="--import", multiple=True, metavar="MODULE|FILE.py",
            help="Module or file that adds layers and backends; repeat the flag for several.",
        ),
    ]  # fmt: skip


# -- logging -----------------------------------------------------------------------------------


def _start_logging(
    stack: ExitStack, log_level: str | None, log_format: str, log_dir: Path | None,
    minloglevel: int | None, as_caffe: bool,
) -> None:  # fmt: skip
    from demitasse.core.config import settings
    from demitasse.core.log import GLOG_LEVELS, start_logging, stop_logging
    from demitasse.errors import ConfigError

    if log_level is None and minloglevel is not None:
        log_level = logging.getLevelName(GLOG_LEVELS[minloglevel]).lower()
    start_logging(log_level or "warning", log_format)  # reading the settings may log warnings
    stack.callback(stop_logging)
    try:
        for name in settings.names():
            settings.find(name)
    except ConfigError as error:  # a wrong setting is wrong usage, not a fault of a model
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


class LogFile(logging.FileHandler):
    """A log file; a full disk gives one warning and does not fail the run."""

    _warned = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Warn once that records are missing."""
        error = sys.exception()
        if isinstance(error, OSError):
            self._warn(error)
        else:
            super().handleError(record)

    def close(self) -> None:
        """Close the file."""
        try:
            super().close()
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            why = error.strerror or error
            print_stderr(f"warning: {self.baseFilename} lacks lines: {why}")


def open_log(log_dir: Path | None, as_caffe: bool) -> LogFile | None:
    """Open the log file of a command, in addition to standard error; None without a folder.

    A file in ``GLOG_log_dir``, which only Caffe's commands read, has glog's name, and the link
    ``caffe.INFO`` names the newest. Such a file that cannot be written is a warning.
    """
    now = datetime.now()
    if log_dir is not None:
        log_dir.mkdir(parents=True, exist_ok=True)
        return LogFile(log_dir / f"demitasse.{now:%Y%m%d-%H%M%S.%f}.log", encoding="utf-8")
    glog_dir = os.environ.get("GLOG_log_dir")  # noqa: SIM112 - glog's own spelling
    if not glog_dir or not as_caffe:
        return None
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user number without a name, as in containers
        user = "invalid-user"
    folder = Path(glog_dir)
    name = f"caffe.{socket.gethostname()}.{user}.log.INFO.{now:%Y%m%d-%H%M%S}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = LogFile(folder / name, encoding="utf-8")
    except OSError as error:
        print_stderr(f"warning: no log file in GLOG_log_dir={folder}: {error.strerror}")
        return None
    newest = folder / "caffe.INFO"
    with suppress(OSError):  # not every file system has links
        newest.unlink(missing_ok=True)
        newest.symlink_to(name)
    return file

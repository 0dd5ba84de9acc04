"""trust: let a settings file say which code is loaded and run."""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.options import FILE
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@click.argument("files", type=FILE, nargs=-1, metavar="[FILE]...")
@click.option("--remove", is_flag=True, help="Take the files off the list of those you trust.")
def command(files: tuple[Path, ...], remove: bool) -> None:
    """Trust settings files as they are now, or list those that are trusted.

    A demitasse.toml may be somebody else's. So what it says about code (plugins, onednn_library,
    python_layers, jit) and about files to write (kernel_dump) is ignored, unless you trust it. When
    the file changes, it is trusted no longer.
    """
    from demitasse.core.config.files import distrust, trust, trust_list, trusted_files

    if not files:
        for name, digest in sorted(trusted_files().items()):
            click.echo(f"{digest[:12]}  {name}")
    for file in files:
        if not remove:
            trust(file)
            click.echo(f"trusted, as it is now: {file}")
        elif distrust(file):
            click.echo(f"no longer trusted: {file}")
        else:
            message = f"{file} is not on the list {trust_list()}"
            raise click.UsageError(message)

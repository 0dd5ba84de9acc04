"""serve: a server that trained nets answer from, over HTTP."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from demitasse.cli.images import reading
from demitasse.cli.options import FILE, device_options
from demitasse.cli.verb import Verb

if TYPE_CHECKING:
    from demitasse.inference.serving.model import Model

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
"""What a model may be called."""

POSITIVE = click.IntRange(min=1)


@click.command(cls=Verb)
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option("--weights", type=FILE, multiple=True, help="Weights of a net given as a prototxt.")
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Where to listen; by default only programs of this machine reach the server.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option(
    "--workers",
    type=POSITIVE,
    default=1,
    show_default=True,
    help="Threads of each model, each with a net of its own.",
)
@click.option(
    "--max_batch", type=POSITIVE, default=16, show_default=True, help="The most items of a run."
)
@click.option(
    "--max_delay",
    type=click.FloatRange(0, 60_000),
    default=0.0,
    metavar="MS",
    help="Milliseconds that a request waits for others to join it. [default: 0]",
)
@click.option(
    "--max_queue",
    type=POSITIVE,
    default=128,
    show_default=True,
    help="Requests that may wait for a model; more are answered 503.",
)
@click.option(
    "--max_bytes",
    type=POSITIVE,
    default=1 << 25,
    show_default=True,
    help="The most bytes of a request.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.001, 86_400),
    default=60.0,
    metavar="SECONDS",
    show_default=True,
    help="In which a request must have come, and in which it is answered then.",
)
@device_options
def command(
    models: tuple[str, ...],
    weights: tuple[Path, ...],
    host: str,
    port: int,
    workers: int,
    max_batch: int,
    max_delay: float,
    max_queue: int,
    max_bytes: int,
    timeout: float,
    device: str | None,
) -> None:
    """Serve trained nets over HTTP, by KServe's protocol, version 2.

    Each MODEL is a card (.toml), a folder with a card model.toml, weights with their prototxt
    beside them, or one prototxt with --weights; NAME=MODEL says what clients call it. SIGTERM and
    Ctrl-C end the server when what is under way is answered.
    """
    from demitasse.inference.cards.opening import find_model
    from demitasse.inference.serving.app import Limits
    from demitasse.inference.serving.server import Serving, serve

    named = [_named(text) for text in models]
    names = [name for name, _ in named]
    for name in names:
        if names.count(name) > 1:
            message = f"two models are called {name!r}; name them: one={named[0][1]}"
            raise click.UsageError(message)
    if weights and len(models) > 1:
        message = "--weights is for one MODEL; name files of weights that lie beside their nets"
        raise click.UsageError(message)
    with reading():
        found = {name: find_model(path, weights) for name, path in named}
    how = Serving(
        host=host,
        port=port,
        workers=workers,
        max_batch=max_batch,
        max_delay=max_delay / 1000,
        max_queue=max_queue,
        device=device,
        limits=Limits(max_bytes, timeout),
    )
    serve(found, how, _tell)


def _named(text: str) -> tuple[str, Path]:
    """Return what a model is called, and where it lies."""
    given = re.fullmatch(rf"({NAME})=(.+)", text, re.DOTALL)
    if given is not None:
        return given[1], Path(given[2])
    path = Path(text)
    stem = (path if path.is_dir() else path.with_suffix("")).resolve().name
    name = path.resolve().parent.name if path.name == "model.toml" else stem
    if re.fullmatch(NAME, name) is None:
        message = f"{name!r} cannot be a model's name; say what it is called: NAME={text}"
        raise click.UsageError(message)
    return name, path


def _tell(address: str, models: Sequence[Model]) -> None:
    """Say where what is served, and what to know of it."""
    for model in models:
        inputs = ", ".join(f"{port.name} {list(port.shape)}" for port in model.inputs)
        joined = f"up to {model.max_batch} at once" if model.joins else "one request at a time"
        click.echo(f"{address}/v2/models/{model.name}  {inputs}, {joined}")
    if address.startswith(("http://127.", "http://[::1]")):
        click.echo("Only programs of this machine reach it; --host 0.0.0.0 opens it to the network")
    click.echo("Ready")

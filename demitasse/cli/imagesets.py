"""Flags of the verbs that make databases of image files, and what those verbs do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from demitasse.cli.options import FILE, FOLDER, backend_option, json_option, overwrite_option
from demitasse.cli.output import print_json

if TYPE_CHECKING:
    from demitasse.io.data.imageset import Annotations

__all__ = ["Conversion", "image_set_options"]

Function = Callable[..., Any]


@dataclass(frozen=True)
class Conversion:
    """A database to be made, as the shared flags say.

    Attributes:
        root: What stands before each name.
        source: The list.
        out: The folder to make.
        images: Fields of ``ImageSet``.
        options: Further arguments of ``convert_imageset``.
        as_json: Whether to print JSON.
    """

    root: str
    source: Path
    out: Path
    images: dict[str, Any]
    options: dict[str, Any]
    as_json: bool

    def run(
        self, *, min_dim: int = 0, max_dim: int = 0, annotations: Annotations | None = None
    ) -> None:
        """Make the database and say what came of it; see ``ImageSet`` for the arguments."""
        from demitasse.cli.progress import line_progress
        from demitasse.io.data.imageset import ImageSet, convert_imageset

        how = ImageSet(**self.images, min_dim=min_dim, max_dim=max_dim, annotations=annotations)
        with line_progress() as progress:
            done = convert_imageset(
                self.root, self.source, self.out, how, **self.options, progress=progress
            )
        if self.as_json:
            print_json({"database": str(self.out), **done._asdict()})
            return
        left_out = f", {done.skipped} images left out" if done.skipped else ""
        click.echo(f"{self.out}: {done.written} records written{left_out}")


def image_set_options(function: Function) -> Function:
    """Add what a database of image files is made of; the verb gets ``conversion``."""

    @click.argument("root", metavar="ROOTFOLDER/")
    @click.argument("source", metavar="LISTFILE", type=FILE)
    @click.argument("out", metavar="DB_NAME", type=FOLDER)
    @click.option("--gray", is_flag=True, help="Store one channel: brightness.")
    @click.option("--shuffle", is_flag=True, help="Store the images in another order.")
    @click.option(
        "--seed",
        type=int,
        default=0,
        show_default=True,
        help="What the order of --shuffle depends on.",
    )
    @backend_option()
    @click.option(
        "--resize_width", type=int, default=0, help="Width to resize to, in pixels; 0: leave it."
    )
    @click.option(
        "--resize_height", type=int, default=0, help="Height to resize to, in pixels; 0: leave it."
    )
    @click.option("--check_size", is_flag=True, help="Refuse images of different sizes.")
    @click.option("--encoded", is_flag=True, help="Store the bytes of image files.")
    @click.option(
        "--encode_type",
        default="",
        metavar="jpg|png|...",
        help="Store the bytes of files of this format, whatever the images come in.",
    )
    @overwrite_option
    @click.option(
        "--resume", is_flag=True, help="Go on where an interrupted run with the same flags stopped."
    )
    @click.option(
        "--on_error",
        type=click.Choice(["skip", "raise"]),
        default="skip",
        show_default=True,
        help="What to do with images that cannot be read.",
    )
    @click.option(
        "--threads",
        type=click.IntRange(min=1),
        help="Images decoded at the same time; by default one for each CPU.",
    )
    @json_option
    @wraps(function)
    def with_options(
        *args: Any,
        root: str,
        source: Path,
        out: Path,
        gray: bool,
        shuffle: bool,
        seed: int,
        backend: str,
        resize_width: int,
        resize_height: int,
        check_size: bool,
        encoded: bool,
        encode_type: str,
        overwrite: bool,
        resume: bool,
        on_error: str,
        threads: int | None,
        as_json: bool,
        **kwargs: Any,
    ) -> Any:
        from demitasse.io.data.threads import THREADS

        images = {
            "gray": gray,
            "resize_height": max(resize_height, 0),
            "resize_width": max(resize_width, 0),
            "check_size": check_size,
            "encoded": encoded,
            "encode_type": encode_type,
            "shuffle": shuffle,
            "seed": seed,
        }
        options = {
            "backend": backend,
            "overwrite": overwrite,
            "resume": resume,
            "skip": on_error == "skip",
            "threads": threads or THREADS,
        }
        conversion = Conversion(root, source, out, images, options, as_json)
        return function(*args, conversion=conversion, **kwargs)

    return with_options

"""convert_imageset: a database of image files that a list names.

Source: Caffe, ``tools/convert_imageset.cpp``.
"""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.options import FILE, FOLDER, backend_option, json_option, overwrite_option
from demitasse.cli.output import print_json
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@click.argument("root", metavar="ROOTFOLDER/")
@click.argument("source", metavar="LISTFILE", type=FILE)
@click.argument("out", metavar="DB_NAME", type=FOLDER)
@click.option("--gray", is_flag=True, help="Store one channel: brightness.")
@click.option("--shuffle", is_flag=True, help="Store the images in another order.")
@click.option(
    "--seed", type=int, default=0, show_default=True, help="What the order of --shuffle depends on."
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
def command(
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
) -> None:
    """Make a database of the images that a list names.

    LISTFILE has lines "NAME LABEL"; ROOTFOLDER/ is put before each name as it is. The database
    appears when it is complete; what an interrupted run leaves, --resume goes on with.
    """
    from demitasse.cli.progress import line_progress
    from demitasse.data.imageset import ImageSet, convert_imageset
    from demitasse.data.threads import THREADS

    how = ImageSet(
        gray=gray,
        resize_height=max(resize_height, 0),
        resize_width=max(resize_width, 0),
        check_size=check_size,
        encoded=encoded,
        encode_type=encode_type,
        shuffle=shuffle,
        seed=seed,
    )
    with line_progress() as progress:
        done = convert_imageset(
            root,
            source,
            out,
            how,
            backend=backend,
            overwrite=overwrite,
            resume=resume,
            skip=on_error == "skip",
            threads=threads or THREADS,
            progress=progress,
        )
    if as_json:
        print_json({"database": str(out), **done._asdict()})
        return
    left_out = f", {done.skipped} images left out" if done.skipped else ""
    click.echo(f"{out}: {done.written} records written{left_out}")

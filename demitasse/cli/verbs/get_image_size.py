"""get_image_size: heights and widths of the images that a list names.

Source: SSD (weiliu89/caffe), ``tools/get_image_size.cpp``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from demitasse.cli.options import FILE, FOLDER
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@click.argument("root", metavar="ROOTFOLDER/", type=FOLDER)
@click.argument("source", metavar="LISTFILE", type=FILE)
@click.argument("out", metavar="OUTFILE", type=FILE)
@click.option(
    "--name_id_file",
    type=FILE,
    help='A file of lines "STEM ID"; the ids are written in place of the names.',
)
def command(root: Path, source: Path, out: Path, name_id_file: Path | None) -> None:
    """Write a line "STEM HEIGHT WIDTH" for each image that a list names, in pixels.

    LISTFILE is that of convert_annoset; STEM is an image's name without folder and ending.
    """
    from demitasse.core.atomic import atomic_write
    from demitasse.core.paths import read_text
    from demitasse.errors import DataError, ErrorCode
    from demitasse.io.data.imageset import read_lines
    from demitasse.io.data.threads import THREADS, ahead

    names = [line.name for line in read_lines(source, objects=True)]
    stems = [Path(name).stem for name in names]
    if name_id_file is not None:
        pairs = (line.rpartition(" ") for line in read_text(name_id_file).splitlines())
        ids = {stem.strip(): number for stem, _, number in pairs}
        missing = [stem for stem in stems if stem not in ids]
        if missing:
            message = f"has no number for {missing[0]!r}"
            raise DataError(message, str(name_id_file), code=ErrorCode.MISSING, got=missing[0])
        stems = [ids[stem] for stem in stems]
    sizes = ahead(partial(_size, root), names, THREADS)
    lines = [
        f"{stem} {height} {width}\n" for stem, (height, width) in zip(stems, sizes, strict=True)
    ]
    with atomic_write(out) as file:
        file.write("".join(lines).encode("utf-8", "surrogateescape"))
    click.echo(f"{out}: sizes of {len(lines)} images")


def _size(root: Path, name: str) -> tuple[int, ...]:
    """Return an image's height and width, turned upright."""
    from demitasse.io.data.images.decode import read_image

    return read_image(root / name, "color").shape[1:]

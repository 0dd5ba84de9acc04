"""resize_and_crop_images and get_image_size: prepare files of images.

Source: Caffe, ``tools/extra/resize_and_crop_images.py``.
Source: SSD (weiliu89/caffe), ``tools/get_image_size.cpp``.
"""

from pathlib import Path

import click

from demitasse.cli.command import Command
from demitasse.cli.errors import echo
from demitasse.cli.options import FILE, FOLDER, POSITIVE, option
from demitasse.errors import DataError, ErrorCode


@click.command(cls=Command)
@option("--input source", "List of images, one per line.", FILE, required=True)
@option(
    "--input_folder", "Folder of the names in the list. [default: the working directory]", FOLDER,
    default=Path(),
)  # fmt: skip
@option("--output_folder", "Folder to write to.", FOLDER, required=True)
@option(
    "--output_side_length side", "Height and width of the written images, in pixels.", POSITIVE, 256
)
@option("--num_clients", "Number of threads. [default: number of CPUs]", POSITIVE)
@option(
    "--image_lib",
    "Resize as opencv or PIL; PIL averages pixels and writes JPEGs, some of them smaller.",
    click.Choice(["opencv", "PIL"], case_sensitive=False), "opencv",
)  # fmt: skip
def resize_and_crop_images_command(
    source: Path, input_folder: Path, output_folder: Path, side: int, num_clients: int | None,
    image_lib: str,
) -> None:  # fmt: skip
    """Resize images and crop their centre squares.

    The shorter side is resized to --output_side_length, and the longer side is cropped. Unreadable
    images are skipped with a warning.
    """
    from demitasse.core.atomic import write_bytes
    from demitasse.core.extras import lacks_extra
    from demitasse.core.log import get_logger
    from demitasse.io.data.redaction import read_list_file
    from demitasse.io.data.threads import THREADS, map_ahead

    lines = read_list_file(source, "list of images").split("\n")
    prefix = "" if input_folder == Path() else str(input_folder)
    words = [line.strip().removeprefix(prefix).split() for line in lines if line.strip()]
    names = [(some or [""])[0].lstrip("/") for some in words]
    make = _as_pil if image_lib == "PIL" else _as_opencv

    def write(name: str) -> DataError | None:
        try:
            content = make(side, input_folder / name)
        except DataError as error:
            if lacks_extra(error):
                raise
            return error
        target = output_folder.joinpath(*(part for part in Path(name).parts if part != ".."))
        target.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target, content)
        return None

    faults = [fault for fault in map_ahead(write, names, num_clients or THREADS) if fault]
    for fault in faults:
        get_logger(__name__).warning("Left out: %s", fault)
    echo(f"{output_folder}: {len(names) - len(faults)} images written")


def _as_opencv(side: int, path: Path) -> bytes:
    from demitasse.io.data.images.codecs import encode_image, read_image
    from demitasse.io.data.images.crop import center_crop

    square = center_crop(read_image(path, "color"), side)
    return encode_image(square, path.name.rpartition(".")[2])


def _as_pil(side: int, path: Path) -> bytes:
    from demitasse.io.data.bad_records import located, read_file
    from demitasse.io.data.images.crop import averaged_center_crop

    content = read_file(path)
    try:
        return averaged_center_crop(content, side)
    except DataError as error:
        raise located(error, str(path)) from error


@click.command(cls=Command)
@click.argument("root", metavar="ROOTFOLDER/", type=FOLDER)
@click.argument("source", metavar="LISTFILE", type=FILE)
@click.argument("out", metavar="OUTFILE", type=FILE)
@option("--name_id_file", 'File of lines "STEM ID"; write the ids in place of the names.', FILE)
def get_image_size_command(root: Path, source: Path, out: Path, name_id_file: Path | None) -> None:
    """Write a line "STEM HEIGHT WIDTH" for each image in a list, in pixels.

    LISTFILE is that of convert_annoset; STEM is an image's name without folder and extension.
    """
    from demitasse.core.atomic import write_bytes
    from demitasse.core.paths import read_text
    from demitasse.io.data.images.codecs import read_image
    from demitasse.io.data.imageset import read_lines
    from demitasse.io.data.threads import THREADS, map_ahead

    names = [line.name for line in read_lines(source, objects=True)]
    stems = [Path(name).stem for name in names]
    if name_id_file is not None:
        pairs = (line.rpartition(" ") for line in read_text(name_id_file).splitlines())
        ids = {stem.strip(): number for stem, _, number in pairs}
        missing = [stem for stem in stems if stem not in ids]
        if missing:
            message = f"the file has no id for {missing[0]!r}"
            raise DataError(message, str(name_id_file), code=ErrorCode.MISSING, got=missing[0])
        stems = [ids[stem] for stem in stems]

    def size(name: str) -> str:
        _, height, width = read_image(root / name, "color").shape  # after EXIF rotation
        return f"{height} {width}"

    sizes = map_ahead(size, names, THREADS)
    lines = [f"{stem} {size}\n" for stem, size in zip(stems, sizes, strict=True)]
    write_bytes(out, "".join(lines).encode("utf-8", "surrogateescape"))
    echo(f"{out}: sizes of {len(lines)} images")

"""convert_annoset: a database of images and the objects in them, for single-shot detectors.

Source: SSD (weiliu89/caffe), ``tools/convert_annoset.cpp``.
"""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.imagesets import Conversion, image_set_options
from demitasse.cli.options import FILE
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@image_set_options
@click.option(
    "--anno_type",
    type=click.Choice(["classification", "detection"]),
    default="classification",
    show_default=True,
    help="What stands behind the names of images: a label, or the name of a file of objects.",
)
@click.option(
    "--label_type",
    type=click.Choice(["xml", "json", "txt"]),
    default="xml",
    show_default=True,
    help="Kind of those files: VOC's, COCO's, or lines of class, xmin, ymin, xmax, ymax.",
)
@click.option(
    "--label_map_file", type=FILE, help="Names and numbers of the classes, a LabelMap prototxt."
)
@click.option("--check_label", is_flag=True, help="Refuse names of classes that are there twice.")
@click.option(
    "--min_dim", type=int, default=0, help="Enlarge images with a shorter side, in pixels; 0: none."
)
@click.option(
    "--max_dim", type=int, default=0, help="Make longer sides as long as this, in pixels; 0: none."
)
def command(
    conversion: Conversion,
    anno_type: str,
    label_type: str,
    label_map_file: Path | None,
    check_label: bool,
    min_dim: int,
    max_dim: int,
) -> None:
    """Make a database of the images that a list names, and of the objects in them.

    LISTFILE has lines "NAME LABEL", or for --anno_type detection "NAME OBJECTS", the name of a file
    that says what is where; ROOTFOLDER/ is put before each name as it is. AnnotatedData layers read
    the database, which appears when it is complete.
    """
    from demitasse.io.data.databases.annotation_files import read_labels
    from demitasse.io.data.imageset import Annotations

    annotations = Annotations()
    if anno_type == "detection":
        if label_map_file is None and label_type != "txt":
            message = f"--label_map_file is missing: {label_type} files name classes"
            raise click.UsageError(message)
        labels = read_labels(label_map_file, check=check_label) if label_map_file else {}
        annotations = Annotations(label_type, labels)
    conversion.run(min_dim=max(min_dim, 0), max_dim=max(max_dim, 0), annotations=annotations)

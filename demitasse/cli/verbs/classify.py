"""classify: the scores that a trained net gives to pictures.

Source: Caffe, ``python/classify.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from demitasse.cli.options import FILE
from demitasse.cli.pictures import Pictured, numbers, picture_options, reading
from demitasse.cli.verb import Verb

if TYPE_CHECKING:
    import numpy as np


@click.command(cls=Verb)
@click.argument("source", metavar="INPUT", type=FILE)
@click.argument("out", metavar="OUTPUT", type=FILE)
@picture_options
@click.option(
    "--center_only", is_flag=True, help="Look at the centre only, not at ten views of a picture."
)
@click.option(
    "--images_dim",
    metavar="HEIGHT,WIDTH",
    default="256,256",
    show_default=True,
    help="Size that pictures are brought to before they are cropped.",
)
@click.option(
    "--ext", default="jpg", show_default=True, help="Extension of the pictures in a folder."
)
def command(
    source: Path,
    out: Path,
    pictured: Pictured,
    device: str | None,
    center_only: bool,
    images_dim: str,
    ext: str,
) -> None:
    """Write a trained net's scores of pictures to a .npy file.

    INPUT is a picture, a folder of pictures, or a .npy file of pictures (N, H, W, C), red first,
    from 0 to 1. OUTPUT has one row for each picture.
    """
    import numpy as np

    from demitasse.atomic import atomic_write
    from demitasse.device import choose_device, use_device
    from demitasse.pycaffe.classifier import Classifier

    size = numbers("--images_dim", images_dim)
    if len(size) != 2:
        message = f"--images_dim takes height,width, not {images_dim!r}"
        raise click.UsageError(message)
    with reading(), use_device(choose_device(device)[0]):
        classifier = Classifier(
            pictured.model,
            pictured.weights,
            image_dims=size,
            mean=pictured.mean(),
            input_scale=pictured.input_scale,
            raw_scale=pictured.raw_scale,
            channel_swap=pictured.channel_swap,
        )
        scores = classifier.predict(_pictures(source, ext), oversample=not center_only)
    with atomic_write(out) as file:
        np.save(file, scores)
    click.echo(f"Wrote scores of {len(scores)} pictures to {out}")


def _pictures(source: Path, ext: str) -> list[np.ndarray]:
    import numpy as np

    from demitasse.errors import DataError
    from demitasse.pycaffe.io import load_image

    if source.suffix == ".npy":
        return list(np.load(source))
    files = sorted(source.glob(f"*.{ext}")) if source.is_dir() else [source]
    if not files:
        message = f"no picture in this folder ends in .{ext}; --ext names another extension"
        raise DataError(message, str(source))
    return [load_image(file) for file in files]

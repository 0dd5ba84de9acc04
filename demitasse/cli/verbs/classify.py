"""classify: the scores that a trained net gives to images.

Source: Caffe, ``python/classify.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from demitasse.cli.images import ImageModel, image_options, numbers, reading
from demitasse.cli.options import FILE
from demitasse.cli.verb import Verb

if TYPE_CHECKING:
    import numpy as np


@click.command(cls=Verb)
@click.argument("source", metavar="INPUT", type=FILE)
@click.argument("out", metavar="OUTPUT", type=FILE)
@image_options
@click.option(
    "--center_only", is_flag=True, help="Look at the centre only, not at ten views of an image."
)
@click.option(
    "--images_dim",
    metavar="HEIGHT,WIDTH",
    default="256,256",
    show_default=True,
    help="Size that images are brought to before they are cropped.",
)
@click.option(
    "--ext", default="jpg", show_default=True, help="Extension of the images in a folder."
)
def command(
    source: Path,
    out: Path,
    image_model: ImageModel,
    device: str | None,
    center_only: bool,
    images_dim: str,
    ext: str,
) -> None:
    """Write a trained net's scores of images to a .npy file.

    INPUT is an image, a folder of images, or a .npy file of images (N, H, W, C), red first,
    from 0 to 1. OUTPUT has one row for each image.
    """
    import numpy as np

    from demitasse.compat.pycaffe.classifier import Classifier
    from demitasse.core.atomic import atomic_write
    from demitasse.core.device import choose_device, use_device

    size = numbers("--images_dim", images_dim)
    if len(size) != 2:
        message = f"--images_dim takes height,width, not {images_dim!r}"
        raise click.UsageError(message)
    with reading(), use_device(choose_device(device)[0]):
        classifier = Classifier(
            image_model.net,
            image_model.weights,
            image_dims=size,
            mean=image_model.mean(),
            input_scale=image_model.input_scale,
            raw_scale=image_model.raw_scale,
            channel_swap=image_model.channel_swap,
        )
        scores = classifier.predict(_images(source, ext), oversample=not center_only)
    with atomic_write(out) as file:
        np.save(file, scores)
    click.echo(f"Wrote scores of {len(scores)} images to {out}")


def _images(source: Path, ext: str) -> list[np.ndarray]:
    from demitasse.compat.pycaffe.io import load_image
    from demitasse.errors import DataError, ErrorCode
    from demitasse.io.weights.npy import read_npy

    if source.suffix == ".npy":
        return list(read_npy(source))
    files = sorted(source.glob(f"*.{ext}")) if source.is_dir() else [source]
    if not files:
        message = f"no image in this folder ends in .{ext}; --ext names another extension"
        raise DataError(message, str(source), code=ErrorCode.NOT_FOUND, ending=ext)
    return [load_image(file) for file in files]

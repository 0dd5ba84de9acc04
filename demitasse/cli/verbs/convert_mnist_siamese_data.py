"""convert_mnist_siamese_data: a database of pairs of MNIST's images.

Source: Caffe, ``examples/siamese/convert_mnist_siamese_data.cpp``.
"""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.converters import tell_written
from demitasse.cli.options import FILE, FOLDER, backend_option, json_option, overwrite_option
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@click.argument("images", type=FILE)
@click.argument("labels", type=FILE)
@click.argument("out", metavar="DB_NAME", type=FOLDER)
@backend_option("LEVELDB")
@click.option("--seed", type=int, default=0, show_default=True, help="What the pairs depend on.")
@overwrite_option
@json_option
def command(
    images: Path,
    labels: Path,
    out: Path,
    backend: str,
    seed: int,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Make a database of pairs of MNIST's images.

    IMAGES and LABELS are two of its four files, gzipped or not. There are as many pairs as
    images, drawn at random; the label is 1 where both show the same digit.
    """
    from demitasse.io.data.databases.mnist import convert_pairs

    count = convert_pairs(images, labels, out, seed, overwrite=overwrite, backend=backend)
    tell_written({out: count}, as_json=as_json)

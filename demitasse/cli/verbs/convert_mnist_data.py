"""convert_mnist_data: a database of MNIST's images and labels.

Source: Caffe, ``examples/mnist/convert_mnist_data.cpp``.
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
@backend_option()
@overwrite_option
@json_option
def command(
    images: Path, labels: Path, out: Path, backend: str, overwrite: bool, as_json: bool
) -> None:
    """Make a database of MNIST's files.

    IMAGES and LABELS are two of its four files, gzipped or not.
    """
    from demitasse.io.data.databases.mnist import convert_files

    count = convert_files(images, labels, out, overwrite=overwrite, backend=backend)
    tell_written({out: count}, as_json=as_json)

"""compute_image_mean: the mean image of a database.

Source: Caffe, ``tools/compute_image_mean.cpp``.
"""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.options import FILE, backend_option, json_option
from demitasse.cli.output import print_json
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@click.argument("database", type=FILE)
@click.argument("out", type=FILE, required=False)
@backend_option(help="What kind of database it is.")
@json_option
def command(database: Path, out: Path | None, backend: str, as_json: bool) -> None:
    """Compute the mean image of a database.

    Prints the mean of each channel.
    OUT, when given, is written: a .npy file when it ends so, else a .binaryproto.
    """
    import numpy as np

    from demitasse.core.atomic import atomic_write
    from demitasse.io.data.transform.mean import compute_mean
    from demitasse.io.proto import floats, write_binary

    mean = compute_mean(database, backend)
    array = floats(mean).reshape(mean.channels, mean.height, mean.width)
    if out is not None and out.suffix == ".npy":
        with atomic_write(out) as file:
            np.save(file, array)
    elif out is not None:
        write_binary(out, mean)
    channels = array.mean((1, 2)).tolist()
    if as_json:
        print_json({"shape": list(array.shape), "channel_means": channels})
        return
    for index, value in enumerate(channels):
        click.echo(f"mean_value channel [{index}]: {value:g}")

"""extract_features: what a net makes of its data, as databases.

Source: Caffe, ``tools/extract_features.cpp``.
"""

from __future__ import annotations

import re
from pathlib import Path

import click

from demitasse.cli.completion import complete_devices
from demitasse.cli.converters import tell_written
from demitasse.cli.gpus import gpu_numbers
from demitasse.cli.options import BACKEND, FILE, json_option, overwrite_option, split_names
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@click.argument("weights", type=FILE)
@click.argument("model", metavar="NET", type=FILE)
@click.argument("blobs", metavar="BLOB[,BLOB]")
@click.argument("databases", metavar="DB_NAME[,DB_NAME]")
@click.argument("batches", type=click.IntRange(min=1))
@click.argument("backend", metavar="DB_TYPE", type=BACKEND)
@click.argument("mode", metavar="[CPU|GPU]", required=False, type=click.Choice(["CPU", "GPU"]))
@click.argument("gpu", metavar="[DEVICE_ID=0]", required=False, default="0")
@click.option(
    "--device",
    metavar="DEVICE",
    shell_complete=complete_devices,
    help="Where to run, in place of CPU or GPU.",
)
@overwrite_option
@json_option
def command(
    weights: Path,
    model: Path,
    blobs: str,
    databases: str,
    batches: int,
    backend: str,
    mode: str | None,
    gpu: str,
    device: str | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write what a net makes of its data as databases.

    NET is a prototxt with a data layer, of which BATCHES batches are run in phase TEST. Each blob
    is written to the database in its place, a record for each item, with keys 0000000000, ...;
    DB_TYPE is lmdb or leveldb.
    """
    names, paths = split_names((blobs,)), [Path(path) for path in split_names((databases,))]
    if len(names) != len(paths):
        message = f"there are {len(names)} blobs, but {len(paths)} databases to write them to"
        raise click.UsageError(message)
    from demitasse.cli.features import write_features
    from demitasse.cli.loading import load_weights_into
    from demitasse.core.log import get_logger
    from demitasse.net import Net

    with Net(model, "TEST", device=device or _device(mode, gpu), keep=names) as net:
        get_logger(__name__).info("Use %s.", net.device)
        load_weights_into(net, [weights])
        outputs = dict(zip(names, paths, strict=True))
        written = write_features(net, outputs, batches, backend, overwrite=overwrite)
    tell_written(written, as_json=as_json)


def _device(mode: str | None, gpu: str) -> str | None:
    """Return the device that Caffe's words mean; None where there are none."""
    if mode is None:
        return None
    number = gpu_numbers(re.sub(r"^DEVICE_ID=", "", gpu))[0]
    return f"cuda:{number}" if mode == "GPU" else "cpu"

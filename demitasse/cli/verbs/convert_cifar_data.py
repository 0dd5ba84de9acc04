"""convert_cifar_data: databases of CIFAR-10.

Source: Caffe, ``examples/cifar10/convert_cifar_data.cpp``.
"""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.converters import tell_written
from demitasse.cli.options import BACKEND, FOLDER, json_option, overwrite_option
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@click.argument("source", metavar="INPUT_FOLDER", type=FOLDER)
@click.argument("out", metavar="OUTPUT_FOLDER", type=FOLDER)
@click.argument("backend", metavar="DB_TYPE", type=BACKEND)
@overwrite_option
@json_option
def command(source: Path, out: Path, backend: str, overwrite: bool, as_json: bool) -> None:
    """Make databases of CIFAR-10's files.

    INPUT_FOLDER holds data_batch_1.bin to data_batch_5.bin and test_batch.bin; DB_TYPE is lmdb or
    leveldb. Makes cifar10_train_DB_TYPE and cifar10_test_DB_TYPE in OUTPUT_FOLDER.
    """
    from demitasse.io.data.databases.cifar import convert

    tell_written(convert(source, out, backend, overwrite=overwrite), as_json=as_json)

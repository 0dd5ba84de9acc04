"""Blobs of a net that runs through its data, written as databases.

Source: Caffe, ``tools/extract_features.cpp``.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from demitasse.blob import Blob
from demitasse.core.log import get_logger
from demitasse.io.data.databases.datum import array_to_datum
from demitasse.io.data.databases.writing import Records, new_database
from demitasse.net import Net

__all__ = ["write_features"]

log = get_logger(__name__)


def write_features(
    net: Net,
    outputs: dict[str, Path],
    batches: int,
    backend: str,
    *,
    overwrite: bool = False,
) -> dict[Path, int]:
    """Run a net and write some of its blobs, a record for each item, as databases.

    Args:
        net: The net, with data layers.
        outputs: Blob -> the database to make of it; all appear when all are complete.
        batches: How often to run it.
        backend: ``"LMDB"`` or ``"LEVELDB"``.
        overwrite: Whether to replace databases that are there.

    Returns:
        For each database, how many records it holds.

    Raises:
        DataError: There is something where a database is to be.
        ShapeError: A blob has more than four axes, which a record cannot have.
    """
    blobs = {name: net.blob_by_name(name) for name in outputs}
    with ExitStack() as stack:
        written = {
            name: Records(stack.enter_context(new_database(path, backend, overwrite=overwrite)))
            for name, path in outputs.items()
        }
        for _ in range(batches):
            net.forward()
            for name, records in written.items():
                _add(blobs[name], name, records)
        for name, records in written.items():
            records.commit()
            _tell(name, records)
    return {outputs[name]: records.count for name, records in written.items()}


def _add(blob: Blob, name: str, records: Records) -> None:
    N, C, H, W = (blob.legacy_shape(axis) for axis in range(4))
    for item in blob.cpu_data().reshape(N, C, H, W):
        if records.add(b"%010d" % records.count, array_to_datum(item)):
            _tell(name, records)


def _tell(name: str, records: Records) -> None:
    log.info("Extracted features of %d query images for feature blob %s", records.count, name)

"""The mean of many records: read from a file, or computed from a database.

Source: Caffe, ``tools/compute_image_mean.cpp``.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError

from demitasse.core.paths import read_bytes, read_failure
from demitasse.errors import DataError, DemitasseError, WeightsError
from demitasse.io.data.databases.database import open_db, printable, records
from demitasse.io.data.databases.datum import datum_to_array
from demitasse.io.proto import BlobProto, Datum, floats, set_floats, stored_shape

__all__ = ["compute_mean", "read_mean"]


def read_mean(path: Path) -> np.ndarray:
    """Read a mean file (``.binaryproto``).

    Returns:
        The mean, float32 or, where the file has that, float64. Shape: (C, H, W).

    Raises:
        DataError: There is no such file, or it does not hold one array (C, H, W).
    """
    try:
        proto = BlobProto.FromString(read_bytes(path))
    except OSError as error:
        message = f"the mean file cannot be read: {read_failure(error, path)}"
        raise DataError(message, str(path)) from error
    except DecodeError as error:
        message = "this is not a mean file: it does not hold a BlobProto"
        raise DataError(message, str(path)) from error
    try:
        values, dims = floats(proto), stored_shape(proto)
    except WeightsError as error:
        raise DataError(error.message, str(path)) from error
    if len(dims) == 4 and dims[0] == 1:
        dims = dims[1:]
    if len(dims) != 3 or min(dims) < 1 or values.size != np.prod(dims, dtype=object):
        message = (
            f"a mean is one array (C, H, W); this file says {dims} and has {values.size} values"
        )
        raise DataError(message, str(path))
    return values.reshape(dims)


def compute_mean(source: str | Path, backend: str = "LMDB") -> BlobProto:
    """Return the mean of all records of a database, as Caffe's mean files hold it.

    Raises:
        DataError: The database is empty or cannot be read, or its records differ in size.
    """
    total = np.zeros((0, 0, 0))
    count = 0
    with closing(open_db(source, backend)) as database, closing(database.new_cursor()) as cursor:
        for key, value in records(cursor):
            try:
                array = datum_to_array(Datum.FromString(bytes(value)))
            except (DemitasseError, DecodeError) as error:
                raise DataError(str(error), str(source), printable(key)) from error
            if not count:
                total = np.zeros(array.shape)
            if array.shape != total.shape:
                message = f"this record is {array.shape}, the ones before it are {total.shape}"
                raise DataError(message, str(source), printable(key))
            total += array
            count += 1
    if not count:
        message = "the database holds no records"
        raise DataError(message, str(source))
    mean = BlobProto(num=1)
    mean.channels, mean.height, mean.width = total.shape
    set_floats(mean, (total / count).astype(np.float32))
    return mean

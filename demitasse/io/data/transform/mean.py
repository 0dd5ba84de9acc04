"""Mean of records: read from a mean file, or computed from a database.

Source: Caffe, ``tools/compute_image_mean.cpp``.
"""

from collections.abc import Callable, Sized
from contextlib import closing
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError

from demitasse.core.paths import code_of, read_bytes, read_failure
from demitasse.errors import DataError, DemitasseError, ErrorCode, ShapeError, WeightsError
from demitasse.io.data.bad_records import located
from demitasse.io.data.databases.database import open_db, printable, records
from demitasse.io.data.databases.datum import datum_of, datum_to_array
from demitasse.io.proto import BlobProto, floats, set_floats, stored_shape


def check_channel_values(field: str, count: int, channels: int) -> None:
    """Refuse a number of values that is neither 1 nor one per channel."""
    if count not in {1, channels}:
        expected = " or ".join(map(str, sorted({1, channels})))
        message = f"got {count} {field}, expected {expected} (channels: {channels})"
        raise ShapeError(
            message, code=ErrorCode.COUNT_MISMATCH, field=field, got=count, expected=channels
        )


def read_mean(path: Path) -> np.ndarray:
    """Return a mean file (``.binaryproto``). Shape: (C, H, W), float32, or float64 if stored so.

    Raises:
        DataError: The file does not exist, or is no array (C, H, W).
    """
    try:
        proto = BlobProto.FromString(read_bytes(path))
    except OSError as error:
        message = f"the mean file cannot be read: {read_failure(error, path)}"
        raise DataError(message, str(path), code=code_of(error)) from error
    except DecodeError as error:
        message = "this is no mean file: it is no BlobProto"
        raise DataError(message, str(path), code=ErrorCode.UNREADABLE) from error
    try:
        values, dims = floats(proto), stored_shape(proto)
    except WeightsError as error:
        raise located(error, str(path)) from error
    if len(dims) == 4 and dims[0] == 1:
        dims = dims[1:]
    if len(dims) != 3 or min(dims) < 1 or values.size != np.prod(dims, dtype=object):
        message = (
            f"got a mean of shape {dims} with {values.size} values, expected one array (C, H, W)"
        )
        raise DataError(message, str(path), code=ErrorCode.SHAPE_MISMATCH, got=dims)
    return values.reshape(dims)


def compute_mean(
    source: str | Path, backend: str = "LMDB", progress: Callable[[int, int], None] | None = None
) -> BlobProto:
    """Return the mean of all records of a database, as stored in Caffe's mean files.

    Records are Datum or AnnotatedDatum.

    ``progress`` is called after each record with the records done and their number; never for
    databases without a count of records.

    Raises:
        DataError: The database is empty or cannot be read, or its records differ in size.
    """
    total = np.zeros((0, 0, 0))
    count = 0
    with closing(open_db(source, backend)) as database, closing(database.new_cursor()) as cursor:
        for key, value in records(cursor):
            try:
                array = datum_to_array(datum_of(value))
            except DecodeError as error:
                name, message = printable(key), "the record is damaged: it is no Datum"
                raise DataError(message, str(source), name, code=ErrorCode.UNREADABLE) from error
            except DemitasseError as error:
                raise located(error, str(source), printable(key)) from error
            if not count:
                total = np.zeros(array.shape)
            if array.shape != total.shape:
                got, expected, code = array.shape, total.shape, ErrorCode.SHAPE_MISMATCH
                name, message = printable(key), f"got a record of {got}, expected {expected}"
                raise DataError(message, str(source), name, code=code, got=got, expected=expected)
            total += array
            count += 1
            if progress is not None and isinstance(database, Sized):
                progress(count, len(database))
    if not count:
        message = "the database has no records"
        raise DataError(message, str(source), code=ErrorCode.NOT_FOUND)
    mean = BlobProto(num=1)
    mean.channels, mean.height, mean.width = total.shape
    set_floats(mean, (total / count).astype(np.float32))
    return mean

"""The data path, from files to batches: what prepares data of one's own is here by name.

``databases`` store records, ``images`` decode and resize, ``transform`` does what
``transform_param`` asks for, ``sources`` make batches of all that, ``prefetch`` makes them ahead of
their use.
"""

from demitasse.data.databases.annotated import annotated_datum, write_annotations
from demitasse.data.databases.datum import array_to_datum, datum_to_array
from demitasse.data.databases.writing import write_database
from demitasse.data.images.decode import read_image
from demitasse.data.images.resize import resize_image
from demitasse.data.transform.mean import compute_mean, read_mean

__all__ = [
    "annotated_datum",
    "array_to_datum",
    "compute_mean",
    "datum_to_array",
    "read_image",
    "read_mean",
    "resize_image",
    "write_annotations",
    "write_database",
]

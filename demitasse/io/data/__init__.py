"""Public names of the data path: records, images, transforms, databases.

``databases`` stores records, ``images`` decodes and resizes, ``transform`` applies
``transform_param``, ``sources`` makes batches, ``prefetch`` makes batches in advance. Names are
loaded at first use: a net with an ``Input`` layer imports no data code.
"""

from typing import TYPE_CHECKING

from demitasse.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from demitasse.io.data.databases.datum import annotated_datum, array_to_datum, datum_to_array
    from demitasse.io.data.databases.writing import write_annotations, write_database
    from demitasse.io.data.images.codecs import read_image
    from demitasse.io.data.images.resize import resize_image
    from demitasse.io.data.transform.mean import compute_mean, read_mean

__all__ = [
    "annotated_datum", "array_to_datum", "compute_mean", "datum_to_array", "read_image",
    "read_mean", "resize_image", "write_annotations", "write_database",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        ".databases.datum": "annotated_datum array_to_datum datum_to_array",
        ".databases.writing": "write_annotations write_database",
        ".images.codecs": "read_image",
        ".images.resize": "resize_image",
        ".transform.mean": "compute_mean read_mean",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

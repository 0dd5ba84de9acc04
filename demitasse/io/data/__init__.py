"""Public names of the data path: records, images, transforms, databases.

``databases`` stores records, ``images`` decodes and resizes, ``transform`` applies
``transform_param``, ``sources`` makes batches, ``prefetch`` makes batches in advance. Names are
loaded at first use: a net with an ``Input`` layer imports no data code.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demitasse.io.data.databases.datum import annotated_datum, array_to_datum, datum_to_array
    from demitasse.io.data.databases.writing import write_annotations, write_database
    from demitasse.io.data.images.codecs import read_image
    from demitasse.io.data.images.resize import resize_image
    from demitasse.io.data.transform.mean import compute_mean, read_mean

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

_HOME = {
    "annotated_datum": "databases.datum",
    "array_to_datum": "databases.datum",
    "compute_mean": "transform.mean",
    "datum_to_array": "databases.datum",
    "read_image": "images.codecs",
    "read_mean": "transform.mean",
    "resize_image": "images.resize",
    "write_annotations": "databases.writing",
    "write_database": "databases.writing",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module, and cache the value."""
    if name not in _HOME:
        message = f"module 'demitasse.io.data' has no attribute {name!r}"
        raise AttributeError(message)
    value = globals()[name] = getattr(import_module(f"demitasse.io.data.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

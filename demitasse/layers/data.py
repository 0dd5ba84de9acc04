"""Data: batches of records from an LMDB or a LevelDB.

Source: Caffe, ``src/caffe/layers/data_layer.cpp``.
"""

from __future__ import annotations

from demitasse.io.data.sources.datum_batch import DatumMaker
from demitasse.io.proto import TransformationParameter
from demitasse.layers._database_base import DatabaseLayer
from demitasse.layers.registry import register

__all__ = ["Data"]


@register("Data")
class Data(DatabaseLayer):
    """Reads the records of a database in order, and begins again after the last.

    In phase TRAIN rank r of n reads records r, r + n, ...; in phase TEST every rank reads all.

    Shapes: top[0] (N, C, H, W), taken from the first record of each batch; top[1] (N,), labels,
    or (N, n) where a record holds n of them.

    Raises:
        ConfigError: ``source`` or ``batch_size`` is missing; ``on_error`` is unknown.
        DataError: The database or a record cannot be read; names it.
    """

    def prepare(self, transform: TransformationParameter) -> None:
        self.transformer = self.make_transformer(transform)

    def make_maker(self) -> DatumMaker:
        return DatumMaker(self.transformer, labels=self.labels)

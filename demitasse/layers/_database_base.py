"""What layers that read a database share: where it is, and where to begin in it."""

from __future__ import annotations

import logging
from contextlib import closing

from demitasse.backends.random import bits, stream_of
from demitasse.core.paths import resolve_path
from demitasse.io.data.sources.database import DatabaseBatches, Maker
from demitasse.io.data.sources.fingerprint import Fingerprint, database_fingerprint
from demitasse.io.proto import DataParameter, TransformationParameter
from demitasse.layers._data_base import EpochDataLayer, prefetched
from demitasse.layers.base import Blobs
from demitasse.layers.checks import missing, positive

__all__ = ["DatabaseLayer"]

logger = logging.getLogger(__name__)


class DatabaseLayer(EpochDataLayer):
    """Reads the records of a database in order, and begins again after the last.

    In phase TRAIN rank r of n reads records r, r + n, ...; in phase TEST every rank reads all.

    Raises:
        ConfigError: ``source`` or ``batch_size`` is missing; ``on_error`` is unknown.
        DataError: The database or a record cannot be read; names it.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.data_param
        self.batch_size = positive(p.batch_size, "batch_size")
        prefetched(p.prefetch)
        if not p.source:
            raise missing("data_param.source", "name the folder of a database")
        self.source = resolve_path(p.source, self.context.base_dir)
        transform = TransformationParameter()
        transform.CopyFrom(self.param.transform_param)
        transform.force_color |= p.force_encoded_color and not transform.force_gray
        self.labels = len(top) > 1
        self.prepare(transform)
        self._position = self._skipped(p.rand_skip)
        self.shape_tops(top)

    def prepare(self, transform: TransformationParameter) -> None:
        """Keep what ``make_maker`` needs.

        Args:
            transform: What ``transform_param`` asks for; a copy.
        """
        raise NotImplementedError(type(self).__name__)

    def make_maker(self) -> Maker:
        """Return what makes batches of the records; it must not refer to the layer."""
        raise NotImplementedError(type(self).__name__)

    def fingerprint(self) -> Fingerprint:
        return database_fingerprint(
            self.source, DataParameter.DB.Name(self.param.data_param.backend)
        )

    def open_source(self, position: int) -> DatabaseBatches:
        p = self.param.data_param
        return DatabaseBatches(
            self.source,
            DataParameter.DB.Name(p.backend),
            self.make_maker(),
            self.batch_size,
            reading=self.reading(position, p.on_error),
        )

    def record(self, number: int) -> tuple[str, str] | None:
        with closing(self.open_source(0)) as source:
            return str(self.source), source.key_of(number)

    def _skipped(self, most: int) -> int:
        """Return how many records ``rand_skip`` leaves out, fewer than ``most``."""
        if not most:
            return 0
        skipped = int(bits(self.context.seed, stream_of(f"{self.name}/rand_skip"), 0, 1)[0]) % most
        logger.warning("rand_skip is deprecated; the first %d records are left out", skipped)
        return skipped

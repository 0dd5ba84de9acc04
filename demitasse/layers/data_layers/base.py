"""Base classes of data layers: transformer, batches made ahead of time, databases.

Source: Caffe, ``src/caffe/layers/base_data_layer.cpp``.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

from demitasse.backends.pixels import Upload, Uploader
from demitasse.backends.random import bits, stream_of
from demitasse.blob import Blob
from demitasse.core.device import Device
from demitasse.core.paths import resolve_path
from demitasse.core.threads import Uninterrupted
from demitasse.io.data.bad_records import BadRecordPolicy, skips
from demitasse.io.data.databases.database import open_db
from demitasse.io.data.prefetch import Prefetcher
from demitasse.io.data.sources.database import BatchMaker, DatabaseBatches, RecordReader
from demitasse.io.data.sources.fingerprint import Fingerprint, database_fingerprint
from demitasse.io.data.sources.source import (
    UNSHARDED,
    Batch,
    BatchSource,
    ReaderConfig,
    Shard,
    skip_other_ranks,
)
from demitasse.io.data.transform.random import AUGMENT_WORDS, RecordRandom
from demitasse.io.data.transform.transformer import DataTransformer
from demitasse.io.proto import DataParameter, TransformationParameter
from demitasse.layers.base import Between, Blobs, Exactly, Layer
from demitasse.layers.checks import missing, out_of_range, positive
from demitasse.memory import transfers

MOST_BATCHES = 1024
"""Largest ``prefetch``, in batches."""

POSITION, SKIPPED = "position", "skipped"
"""Keys of a snapshot: records used so far, and bad records skipped."""


class BaseDataLayer(Layer):
    """Layer that reads data, and labels if it has a second top."""

    bottoms = Exactly(0)
    tops = Between(1, 2)
    dynamic_shapes = True

    def make_transformer(self, param: TransformationParameter) -> DataTransformer:
        """Return the transformer of a ``transform_param``."""
        context = self.context
        return DataTransformer(
            param,
            self.phase,
            context.base_dir,
            RecordRandom(lambda: context.seed, self.name),  # a snapshot may bring another seed
            RecordRandom(lambda: context.seed, self.name, "augment", AUGMENT_WORDS),
            dtype=self.dtype,
        )


class PrefetchingDataLayer(BaseDataLayer):
    """Data layer whose batches are prefetched by a thread.

    As in Caffe, ``prefetch`` batches circulate, including the batch in use. The first forward pass
    starts the thread; ``close`` or deletion of the layer stops it. The tops share the memory of a
    batch, which is valid until the next forward. Some devices take images as bytes
    (``Backend.uploader``): the next batch is uploaded while the present batch is used.

    Attributes:
        batch_size: Records in a batch.
        skipped: Bad records skipped before the batch in the tops.
        skips_bad_records: True if bad records are skipped.
        batch_shard: Batches made here; other batches are skipped.
        whole_epochs: True if a batch ends with the epoch, and may then be smaller.
    """

    _prefetcher: Prefetcher | None = None
    _abandon: weakref.finalize[..., PrefetchingDataLayer] | None = None
    _current: Batch | None = None
    _ahead: tuple[Batch, Upload | None] | None = None  # the next batch, being uploaded
    _uploader: Uploader | None = None
    _upload: Upload | None = None  # images of the batch in the tops, if uploaded as bytes
    _adopted = False  # True if the first top shares the memory of a batch
    _position = 0
    _at_end = True
    _taking = False  # True while an exception would lose a batch
    batch_size: int
    source: Path
    skipped = 0
    skips_bad_records = False
    batch_shard = UNSHARDED
    whole_epochs = False

    def open_source(self, position: int) -> BatchSource:
        """Return the source of batches, from record ``position`` on.

        The source must not refer to the layer: the thread keeps the source alive, and deletion of
        the layer ends the thread.
        """
        raise NotImplementedError(type(self).__name__)

    def reader_config(self, position: int, on_error: str = "raise") -> ReaderConfig:
        """Return the first record of a source, after ``position`` records, and its shard.

        ``on_error`` is the field of that name, ``raise`` or ``skip``; an empty string for the
        setting.
        """
        self.skips_bad_records = skips(on_error)
        broken = BadRecordPolicy(self.name, skip=self.skips_bad_records, count=self.skipped)
        return ReaderConfig(position, self.shard, self.whole_epochs, broken)

    @property
    def shard(self) -> Shard:
        """Share of the records: in phase TRAIN that of this rank, in phase TEST all."""
        context = self.context
        return Shard(context.rank, context.world_size) if self.phase == "TRAIN" else UNSHARDED

    def read_source(self, param: Any, path: str, advice: str) -> None:
        """Read batch size and source of the message at ``path``, and check ``prefetch``.

        Raises:
            ConfigError: A field is missing or out of range.
        """
        self.batch_size = positive(param.batch_size, f"{path}.batch_size")
        prefetch = positive(self.param.data_param.prefetch, "data_param.prefetch")
        if prefetch > MOST_BATCHES:
            raise out_of_range("data_param.prefetch", prefetch, f"at most {MOST_BATCHES} batches")
        if not param.source:
            raise missing(f"{path}.source", advice)
        self.source = resolve_path(param.source, self.context.base_dir)

    def shape_tops(self, top: Blobs) -> None:
        """Set the tops' shapes to those of the first batch."""
        with closing(self.open_source(self._position)) as source:
            for blob, shape in zip(top, source.shapes(), strict=False):
                blob.reshape(shape)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        """Do nothing: ``setup`` and ``forward`` set the shapes."""

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        prefetcher, batch, upload = self._next()
        if batch.is_skipped:  # a batch of another rank, which a caller wants after all
            self.set_batch_shard(UNSHARDED)
            prefetcher, batch, upload = self._next()
        used, used_upload, self._ahead = self._current, self._upload, None
        self._current, self._upload = batch, upload
        self._note(batch)
        moved = False
        for index, (blob, array) in enumerate(zip(top, batch.arrays, strict=False)):
            moved |= blob.shape != array.shape
            blob.reshape(array.shape)
            if upload is not None and index == 0:
                self._unpack(upload, blob)
                continue
            blob.set_cpu_data(array)  # waits for the upload of the last batch
            blob.data_memory.async_push()
            self._adopted |= index == 0
        if moved:  # the memory with the event to wait for may be gone
            self.device.backend.synchronize()
        if used is not None:
            if used_upload is not None:
                used_upload.wait()
            prefetcher.recycle(used)
        if self._uploader is not None and (following := prefetcher.ready()) is not None:
            self._ahead = self._start_upload(following)
        self._taking = False

    def set_batch_shard(self, shard: Shard) -> None:
        """From the next batch on, make those of one reader alone; all batches by default."""
        if shard != self.batch_shard:
            self.batch_shard = shard
            self.set_state(self.state())

    def has_turn(self) -> bool:
        """Return True if the next batch is for this process; False if it is to be skipped."""
        _, batch, upload = self._next()
        self._ahead, self._taking = (batch, upload), False
        return not batch.is_skipped

    def skip(self) -> None:
        """Skip the next batch; the tops stay as they are."""
        _, batch, _ = self._next()
        self._ahead = None
        self._note(batch)
        self._taking = False

    def _next(self) -> tuple[Prefetcher, Batch, Upload | None]:
        """Return the next batch, and its images if they are being uploaded.

        The caller resets ``_taking`` when the batch is used.
        """
        if self._prefetcher is not None and self._prefetcher.is_forked_copy:
            self.close()
        self._taking = True
        prefetcher = self._prefetcher or self._start()
        return prefetcher, *(self._ahead or self._start_upload(prefetcher.next()))

    def _note(self, batch: Batch) -> None:
        """Record the position after a batch."""
        self._position, self.skipped = batch.position, batch.skipped
        self._at_end = batch.last

    def _unpack(self, upload: Upload, blob: Blob) -> None:
        """Convert uploaded bytes to numbers on the device."""
        if self._adopted:  # the host array belongs to a batch that will be refilled
            own = self.device.backend.empty_host(blob.count, self.dtype)
            blob.set_cpu_data(own.reshape(blob.shape))
            self._adopted = False
        upload.unpack(blob.data_memory.mutable_gpu_data(discard=True))

    def _start_upload(self, batch: Batch) -> tuple[Batch, Upload | None]:
        """Return a batch, and start the upload of its images if they are bytes."""
        if self._uploader is None or batch.pixels is None:
            return batch, None
        transfers.note(up=batch.pixels.nbytes)
        return batch, self._uploader.send(batch.pixels)

    def record_of(self, place: int) -> tuple[str, str] | None:
        """Return source and key of the record at an index of the batch, for messages; or None.

        After skipped records the keys are unknown.
        """
        if self._current is None or self.skipped:
            return None
        from_end = self._current.arrays[0].shape[0] - place
        first = self._current.position - from_end * self.shard.world_size
        return self.record(first + self.shard.rank)

    def record(self, number: int) -> tuple[str, str] | None:
        """Return source and key of a record, counted through all epochs; None if unknown."""

    def rand_skip(self, most: int) -> int:
        """Return the number of records that ``rand_skip`` skips, below ``most``."""
        stream = stream_of(f"{self.name}/rand_skip")
        return int(bits(self.context.seed, stream, 0, 1)[0]) % most if most else 0

    @property
    def waited(self) -> float:
        """Time that forward passes waited for batches since the last start, in seconds."""
        return self._prefetcher.waited if self._prefetcher else 0.0

    def state(self) -> dict[str, int]:
        """Return the records used by all ranks, and the bad records skipped by this rank."""
        state = {POSITION: self._position}
        return {**state, SKIPPED: self.skipped} if self.skipped else state

    def set_state(self, state: dict[str, int]) -> None:
        """Continue after the records of the state; from the first record by default."""
        self._position, self.skipped = state.get(POSITION, 0), state.get(SKIPPED, 0)
        self.close()

    def savepoint(self) -> Callable[[], None]:
        """Return a function that reopens the source here if the position has changed."""
        state, batch = self.state(), self._current

        def take_back() -> None:
            if self._taking or self._current is not batch or self.state() != state:
                self.set_state(state)

        return take_back

    def to(self, device: Device) -> None:
        """Move to another device, which may take batches in another form."""
        super().to(device)
        if self._uploader is not None or device.backend.uploader() is not None:
            self.close()

    def close(self) -> None:
        """Stop the thread and close files; a later forward pass opens them again."""
        prefetcher, abandon = self._prefetcher, self._abandon
        self._prefetcher = self._abandon = self._uploader = None
        self._current = self._ahead = self._upload = None
        self._taking, self._at_end = False, True
        if abandon is not None:
            abandon.detach()
        if prefetcher is not None:
            prefetcher.close()

    def _start(self) -> Prefetcher:
        memory, uploader = self.device.backend.empty_host, self.device.backend.uploader()
        takes_bytes = uploader is not None
        # at least two: one in use, one being filled; and one being uploaded
        batches = max(2, self.param.data_param.prefetch) + takes_bytes
        source: BatchSource | None = None
        prefetcher: Prefetcher | None = None
        filled = [Batch(memory, self.dtype, takes_bytes=takes_bytes) for _ in range(batches)]
        try:  # close the source after any error
            source = self.open_source(self._position)
            others: Callable[[], Any] = tuple
            if self.batch_shard != UNSHARDED:
                others = partial(skip_other_ranks, source, self.batch_shard, self.batch_size)
            prefetcher = Prefetcher(
                source,
                filled,
                name=f"prefetch of {self.name}",
                log_on_wait=f"Waiting for data (layer {self.name!r})",  # Caffe's words
                others=others,
            )
            with Uninterrupted():
                self._abandon = weakref.finalize(self, prefetcher.abandon)
                self._abandon.atexit = False  # running threads are stopped at exit anyway
                prefetcher.start()
                self._uploader = uploader
                # last: a thread that has not started must not be waited for
                self._prefetcher = prefetcher
        except BaseException:
            opened = prefetcher or source
            if opened is not None:
                opened.close()
            raise
        return prefetcher


class EpochDataLayer(PrefetchingDataLayer):
    """Data layer that reads a set of records in epochs.

    Batches cross the end of an epoch, as in Caffe, until ``begin_epoch`` is called.
    """

    def begin_epoch(self) -> None:
        """Start at the first record; from now on batches end with the epoch."""
        if not self.whole_epochs or not self.epoch_ended:
            self.whole_epochs = True
            self.set_state(self.state())  # the source starts a new epoch

    @property
    def batch_records(self) -> int:
        """Records in the batch that is in the tops."""
        return self._current.arrays[0].shape[0] if self._current else 0

    @property
    def epoch_ended(self) -> bool:
        """True if the last batch had the last record, or before the first batch."""
        return self._at_end


logger = logging.getLogger(__name__)


class DatabaseLayer(EpochDataLayer):
    """Records of a database in order, from the first again after the last.

    In phase TRAIN rank r of n reads records r, r + n, ...; in phase TEST every rank reads all.

    Raises:
        ConfigError: ``source`` or ``batch_size`` is missing; ``on_error`` is unknown.
        DataError: The database or a record cannot be read; the error names it.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.data_param
        self.read_source(p, "data_param", "name the folder of a database")
        transform = deepcopy(self.param.transform_param)
        transform.force_color |= p.force_encoded_color and not transform.force_gray
        self.labels = len(top) > 1
        self.prepare(transform)
        self._position = self.rand_skip(p.rand_skip)
        if p.rand_skip:
            message = "rand_skip is deprecated; the first %d records are skipped"
            logger.warning(message, self._position)
        self.shape_tops(top)

    def prepare(self, transform: TransformationParameter) -> None:
        """Create the transformer for ``make_maker`` from a copy of ``transform_param``."""
        raise NotImplementedError(type(self).__name__)

    def make_maker(self) -> BatchMaker:
        """Return the object that makes batches of records; it must not refer to the layer."""
        raise NotImplementedError(type(self).__name__)

    def fingerprint(self) -> Fingerprint:
        backend = DataParameter.DB.Name(self.param.data_param.backend)
        return database_fingerprint(self.source, backend)

    def open_source(self, position: int) -> DatabaseBatches:
        p = self.param.data_param
        return DatabaseBatches(
            self.source,
            DataParameter.DB.Name(p.backend),
            self.make_maker(),
            self.batch_size,
            config=self.reader_config(position, p.on_error),
        )

    def record(self, number: int) -> tuple[str, str] | None:
        backend = DataParameter.DB.Name(self.param.data_param.backend)
        with (
            closing(open_db(self.source, backend)) as database,
            closing(RecordReader(database)) as reader,
        ):
            return str(self.source), reader.key_of(number)

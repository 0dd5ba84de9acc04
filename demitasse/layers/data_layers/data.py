"""Data and AnnotatedData: batches of records from an LMDB or a LevelDB."""

from demitasse.io.data.sources.collate import AnnotatedMaker, DatumMaker
from demitasse.io.data.transform.augment import AnnotatedAugmenter
from demitasse.io.data.transform.geometric import EmitFilter
from demitasse.io.data.transform.random import AUGMENT_WORDS, RecordRandom
from demitasse.io.proto import TransformationParameter
from demitasse.layers.data_layers.base import DatabaseLayer
from demitasse.layers.registry import register_layer


@register_layer("Data")
class Data(DatabaseLayer):
    """Records of a database in order, from the first again after the last.

    Batches of records from an LMDB or a LevelDB. In phase TRAIN rank r of n reads records r, r + n,
    ...; in phase TEST every rank reads all.

    Source: Caffe, ``src/caffe/layers/data_layer.cpp``.
    Shapes: top[0] (N, C, H, W), taken from the first record of each batch; top[1] (N,), labels,
    or (N, n) where a record holds n of them.

    Raises:
        ConfigError: ``source`` or ``batch_size`` is missing; ``on_error`` is unknown.
        DataError: The database or a record cannot be read; the error names it.
    """

    def prepare(self, transform: TransformationParameter) -> None:
        self.transformer = self.make_transformer(transform)

    def make_maker(self) -> DatumMaker:
        return DatumMaker(self.transformer, labels=self.labels)


@register_layer("AnnotatedData")
class AnnotatedData(DatabaseLayer):
    """AnnotatedDatum records in order, from the first again after the last.

    Batches of images and of the boxes of the objects in them, from a database. Images are
    distorted, expanded, sampled (``batch_sampler``), resized, cropped and mirrored; boxes are
    transformed with them and clipped. The random choices for a record depend on the seed, the
    layer's name and the record's number alone. ``resize_param`` counts in boxes as its pixels say,
    so ``height_scale`` and ``width_scale`` change nothing. Not compared with the original. In phase
    TRAIN rank r of n reads records r, r + n, ...; in phase TEST every rank reads all.

    Source: SSD (weiliu89/caffe), ``src/caffe/layers/annotated_data_layer.cpp``.
    Shapes: top[0] (N, C, H, W); top[1], if there is one, (1, 1, G, 8): place in the batch, class,
    instance, xmin, ymin, xmax, ymax in units of the image, difficult; one row of -1 where there
    is no object. Records without a type have labels instead, (N,).

    Raises:
        ConfigError: ``source`` or ``batch_size`` is missing; ``on_error`` is unknown; a sampler's
            range is empty; or images would come in many sizes.
        DataError: The database or a record cannot be read; the error names it.
    """

    def prepare(self, transform: TransformationParameter) -> None:
        self.emit_filter = EmitFilter()
        if transform.HasField("emit_constraint"):
            self.emit_filter = EmitFilter.of(transform.emit_constraint)
            transform.ClearField("emit_constraint")  # the other fields transform pixels
        samplers = list(self.param.annotated_data_param.batch_sampler)
        self.augmenter = AnnotatedAugmenter(transform, samplers, self.emit_filter)
        self.transformer = self.make_transformer(transform)

    def make_maker(self) -> AnnotatedMaker:
        context = self.context
        return AnnotatedMaker(
            self.augmenter,
            self.transformer,
            self.emit_filter,
            RecordRandom(context.seed, self.name, "augment", AUGMENT_WORDS),
            labels=self.labels,
            boxes=self.param.annotated_data_param.HasField("anno_type"),
        )

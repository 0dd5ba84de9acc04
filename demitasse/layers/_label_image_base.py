"""What layers of images with a class for every pixel share.

Source: DeepLab, ``src/caffe/layers/image_seg_data_layer.cpp``.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from demitasse.core.paths import resolve_path
from demitasse.io.data.sources.fingerprint import Fingerprint, list_fingerprint
from demitasse.io.data.sources.label_images import LabelImageBatches, Look, read_pairs
from demitasse.io.data.sources.order import Order
from demitasse.io.data.transform.augment.augmenter import Augmenter
from demitasse.io.data.transform.augment.draws import WORDS
from demitasse.io.data.transform.random import RecordRandom
from demitasse.io.data.transform.transformer import crop_of
from demitasse.io.proto import ImageDataParameter, TransformationParameter
from demitasse.layers._data_base import EpochDataLayer
from demitasse.layers.base import Blobs
from demitasse.layers.checks import missing, out_of_range, positive, unsupported
from demitasse.layers.image_data import find_image, new_size

__all__ = ["LabelImageLayer"]

UNUSED = ("mean_file", "expand_param", "resize_param")
"""Fields of ``transform_param`` that would have to change labels as well, or have no size."""


class LabelImageLayer(EpochDataLayer):
    """Reads images and their labels, in the order of a list or shuffled anew in every round."""

    message: ClassVar[str]
    """The field that says what is read."""

    def settings(self) -> tuple[ImageDataParameter, TransformationParameter]:
        """Return what is read, and what is done to it."""
        raise NotImplementedError(type(self).__name__)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del bottom
        p, transform = self.settings()
        self.listed = p
        self.batch_size = positive(p.batch_size, f"{self.message}.batch_size")
        if not p.source:
            raise missing(f"{self.message}.source", "name a list of images and labels")
        size = new_size(p)
        unused = [f"transform_param.{name}" for name in UNUSED if transform.HasField(name)]
        if p.rand_skip:
            unused.append(f"{self.message}.rand_skip")
        if unused:
            raise unsupported(unused[0], f"{self.type} does not support {', '.join(unused)}")
        crop = crop_of(transform)
        if transform.scale_factors and (crop is None or min(transform.scale_factors) <= 0):
            raise out_of_range(
                "transform_param.scale_factors",
                list(transform.scale_factors),
                "numbers above 0, and a crop that gives the images of a batch one size",
            )
        self.look = Look(
            color="color" if p.is_color else "gray",
            size=size,
            factors=tuple(transform.scale_factors),
            crop=crop,
            anywhere=crop is not None and self.phase == "TRAIN",
            mirror=transform.mirror,
            mean=tuple(transform.mean_value) or (0.0,),
            scale=transform.scale,
            label_type=ImageDataParameter.LabelType.Name(p.label_type),
            ignore_label=p.ignore_label,
        )
        self.augmenter = Augmenter(transform)
        self.source = resolve_path(p.source, self.context.base_dir)
        self.pairs = read_pairs(self.source, self.look.label_type)
        self.shape_tops(top)

    def fingerprint(self) -> Fingerprint:
        return list_fingerprint(self.source, len(self.pairs))

    def open_source(self, position: int) -> LabelImageBatches:
        p, context = self.listed, self.context
        return LabelImageBatches(
            self.source,
            self.pairs,
            partial(find_image, p.root_folder, context.base_dir),
            self.look,
            self.augmenter,
            self.batch_size,
            Order(len(self.pairs), context.seed, self.name, shuffle=p.shuffle),
            random=RecordRandom(context.seed, self.name),
            augment_random=RecordRandom(context.seed, self.name, "augment", WORDS),
            reading=self.reading(position, p.on_error),
        )

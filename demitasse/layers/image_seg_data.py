"""ImageSegData: batches of images with a class for every pixel, that a list names.

Not compared with the original.

Source: DeepLab, ``src/caffe/layers/image_seg_data_layer.cpp``.
"""

from __future__ import annotations

from functools import partial

from demitasse.data.sources.fingerprint import Fingerprint, list_fingerprint
from demitasse.data.sources.label_images import LabelImageBatches, Look, read_pairs
from demitasse.data.sources.order import Order
from demitasse.data.transform.augment.augmenter import Augmenter
from demitasse.data.transform.augment.draws import WORDS
from demitasse.data.transform.random import RecordRandom
from demitasse.data.transform.transformer import crop_of
from demitasse.errors import ConfigError
from demitasse.layers._data_base import EpochDataLayer
from demitasse.layers.base import Between, Blobs, positive
from demitasse.layers.image_data import find_image, new_size
from demitasse.layers.registry import register
from demitasse.paths import resolve
from demitasse.proto import ImageDataParameter

__all__ = ["ImageSegData"]

UNUSED = ("mean_file", "expand_param", "resize_param")
"""Fields of ``transform_param`` that would have to change labels as well, or have no size."""


@register("ImageSegData")
class ImageSegData(EpochDataLayer):
    """Reads images and their labels, in the order of a list or shuffled anew in every round.

    Lines of the list are ``image label``, both without spaces and looked for as ImageData does.
    With ``label_type: PIXEL`` the label is an image of the same size whose pixels are classes (of
    one with a palette, the numbers of its colours); with ``IMAGE``, which is the default as in
    DeepLab, a class for all pixels; with ``NONE`` there are none, and all pixels have
    ``ignore_label``. Images and labels are cropped and mirrored alike. An image smaller than
    the crop is filled up with the mean, its labels with ``ignore_label``. ``new_height`` and
    ``new_width`` resize labels to the nearest class, where DeepLab would mix classes.

    Shapes: top[0] (N, C, H, W); top[1] labels (N, 1, H, W); top[2], if there is one, height and
    width of each image (N, 1, 1, 2).

    Raises:
        ConfigError: ``source`` or ``batch_size`` is missing; one of ``new_height`` and
            ``new_width`` is given without the other; ``rand_skip`` is given; ``on_error`` is
            unknown; or ``transform_param`` has a mean file or a resize or expand policy.
        DataError: The list or an image cannot be read, or labels have another size; names it.
    """

    tops = Between(2, 3)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del bottom
        p, transform = self.param.image_data_param, self.param.transform_param
        self.batch_size = positive(p.batch_size, "image_data_param.batch_size")
        if not p.source:
            message = "image_data_param has no source; name a list of images and labels"
            raise ConfigError(message)
        size = new_size(p)
        unused = [name for name in UNUSED if transform.HasField(name)]
        if unused or p.rand_skip:
            message = f"ImageSegData cannot use {', '.join(unused or ['rand_skip'])}"
            raise ConfigError(message)
        crop = crop_of(transform)
        self.look = Look(
            color="color" if p.is_color else "gray",
            size=size,
            crop=crop,
            anywhere=crop is not None and self.phase == "TRAIN",
            mirror=transform.mirror,
            mean=tuple(transform.mean_value) or (0.0,),
            scale=transform.scale,
            label_type=ImageDataParameter.LabelType.Name(p.label_type),
            ignore_label=p.ignore_label,
        )
        self.augmenter = Augmenter(transform)
        self.source = resolve(p.source, self.context.base_dir)
        self.pairs = read_pairs(self.source, self.look.label_type)
        self.shape_tops(top)

    def fingerprint(self) -> Fingerprint:
        return list_fingerprint(self.source, len(self.pairs))

    def open_source(self, position: int) -> LabelImageBatches:
        p, context = self.param.image_data_param, self.context
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

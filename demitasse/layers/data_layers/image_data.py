"""Batches of image files that a list names: ImageData, ImageSegData and DenseImageData.

The latter two have a class for every pixel.

Source: Caffe, ``src/caffe/layers/image_data_layer.cpp``; DeepLab,
``src/caffe/layers/image_seg_data_layer.cpp``; SegNet (alexgkendall/caffe-segnet),
``src/caffe/layers/dense_image_data_layer.cpp``.
"""

from copy import deepcopy
from functools import partial
from typing import ClassVar

from demitasse.core.paths import rooted_path
from demitasse.io.data.sources.fingerprint import Fingerprint, list_fingerprint
from demitasse.io.data.sources.image_list import (
    ImageListBatches,
    LabelImageBatches,
    LabelImageOptions,
    read_image_list,
    read_pairs,
)
from demitasse.io.data.sources.sampler import EpochPermutation
from demitasse.io.data.transform.augment import Augmenter
from demitasse.io.data.transform.random import AUGMENT_WORDS, RecordRandom
from demitasse.io.data.transform.transformer import crop_of
from demitasse.io.proto import ImageDataParameter, TransformationParameter
from demitasse.layers.base import Between, Blobs, Exactly
from demitasse.layers.checks import conflict, out_of_range, unsupported
from demitasse.layers.data_layers.base import EpochDataLayer
from demitasse.layers.registry import register_layer


@register_layer("ImageData")
class ImageData(EpochDataLayer):
    """Images of a list, in order or shuffled in every epoch.

    Lines of the list are ``path label``; with several labels, ``path label label ...``. Labels may
    be any numbers. Paths are relative to ``root_folder``, which is also searched beside the
    prototxt. In phase TRAIN rank r of n reads images r, r + n, ...; in phase TEST every rank reads
    all.

    Shapes: top[0] (N, C, H, W), from the first image of each batch; top[1] labels (N,), or (N, n)
    for n labels.

    Raises:
        ConfigError: ``source`` or ``batch_size`` is missing; one of ``new_height`` and
            ``new_width`` is given without the other; ``rand_skip`` may skip everything;
            ``on_error`` is unknown.
        DataError: The list or an image cannot be read; the error names it.
    """

    tops = Exactly(2)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.image_data_param
        self.read_source(p, "image_data_param", "name a list of images")
        self.size = new_size(p)
        self.find = partial(rooted_path, p.root_folder, base=self.context.base_dir)
        self.entries = read_image_list(self.source, self.find)
        self.transformer = self.make_transformer(self.param.transform_param)
        self._position = self.rand_skip(p.rand_skip)
        if p.rand_skip and self._position >= len(self.entries):
            skipped = f"it skipped {self._position}"
            expected = f"fewer than the {len(self.entries)} images of the list; {skipped}"
            raise out_of_range("image_data_param.rand_skip", p.rand_skip, expected)
        self.shape_tops(top)

    def fingerprint(self) -> Fingerprint:
        return list_fingerprint(self.source, len(self.entries))

    def open_source(self, position: int) -> ImageListBatches:
        p = self.param.image_data_param
        return ImageListBatches(
            self.source,
            self.entries,
            self.find,
            self.transformer,
            self.batch_size,
            self._order(),
            color="color" if p.is_color else "gray",
            size=self.size,
            config=self.reader_config(position, p.on_error),
        )

    def record(self, number: int) -> tuple[str, str] | None:
        return str(self.source), self.entries[self._order()[number]].name

    def _order(self) -> EpochPermutation:
        shuffle = self.param.image_data_param.shuffle
        return EpochPermutation(len(self.entries), self.context.seed, self.name, shuffle=shuffle)


def new_size(param: ImageDataParameter) -> tuple[int, int] | None:
    """Return the size to which images are resized, (height, width) in pixels; None to keep it."""
    if bool(param.new_height) != bool(param.new_width):
        message = (
            f"new_height {param.new_height} and new_width {param.new_width} must be given together"
        )
        raise conflict("new_width" if param.new_height else "new_height", message)
    return (param.new_height, param.new_width) if param.new_height else None


UNUSED = ("mean_file", "expand_param", "resize_param", "random_resize_param")
"""Unsupported fields of ``transform_param``."""


class LabelImageLayer(EpochDataLayer):
    """Images of a list and their labels, in order or shuffled in every epoch."""

    message: ClassVar[str]
    """Field of the layer's message with the list."""

    def settings(self) -> tuple[ImageDataParameter, TransformationParameter]:
        """Return the list with its fields, and the transform."""
        raise NotImplementedError(type(self).__name__)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p, transform = self.settings()
        self.listed = p
        self.read_source(p, self.message, "name a list of images and labels")
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
        self.look = LabelImageOptions(
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
        self.pairs = read_pairs(self.source, self.look.label_type)
        self.shape_tops(top)

    def fingerprint(self) -> Fingerprint:
        return list_fingerprint(self.source, len(self.pairs))

    def open_source(self, position: int) -> LabelImageBatches:
        p, context = self.listed, self.context
        return LabelImageBatches(
            self.source,
            self.pairs,
            partial(rooted_path, p.root_folder, base=context.base_dir),
            self.look,
            self.augmenter,
            self.batch_size,
            EpochPermutation(len(self.pairs), context.seed, self.name, shuffle=p.shuffle),
            random=RecordRandom(context.seed, self.name),
            augment_random=RecordRandom(context.seed, self.name, "augment", AUGMENT_WORDS),
            config=self.reader_config(position, p.on_error),
        )


@register_layer("ImageSegData")
class ImageSegData(LabelImageLayer):
    """Images of a list and their labels, in order or shuffled in every epoch.

    Batches of images with a class for every pixel, that a list names. Not compared with the
    original. Lines of the list are ``image label``, both without spaces; paths as for ImageData.
    With ``label_type: PIXEL`` the label is an image of the same size whose pixels are classes (of
    one with a palette, the numbers of its colours); with ``IMAGE``, which is the default as in
    DeepLab, a class for all pixels; with ``NONE`` there are none, and all pixels have
    ``ignore_label``. Images and labels are cropped and mirrored alike. An image smaller than the
    crop is filled up with the mean, its labels with ``ignore_label``. ``new_height`` and
    ``new_width`` resize labels to the nearest class, where DeepLab would mix classes. Each image
    and its labels are then made larger or smaller by one of ``scale_factors``, drawn at random.

    Source: DeepLab, ``src/caffe/layers/image_seg_data_layer.cpp``.
    Shapes: top[0] (N, C, H, W); top[1] labels (N, 1, H, W); top[2], if there is one, height and
    width of each image (N, 1, 1, 2).

    Raises:
        ConfigError: ``source`` or ``batch_size`` is missing; one of ``new_height`` and
            ``new_width`` is given without the other; ``rand_skip`` is given; ``on_error`` is
            unknown; or ``transform_param`` has a mean file, a resize or expand policy, or
            ``scale_factors`` that are not above 0 or come without a crop.
        DataError: The list or an image cannot be read, or labels have another size.
    """

    tops = Between(2, 3)
    message = "image_data_param"

    def settings(self) -> tuple[ImageDataParameter, TransformationParameter]:
        return self.param.image_data_param, self.param.transform_param


LISTED = (
    "source", "batch_size", "rand_skip", "shuffle", "new_height", "new_width", "is_color",
    "root_folder",
)  # fmt: skip
"""Fields of SegNet's message that ``image_data_param`` has, too."""


@register_layer("DenseImageData")
class DenseImageData(LabelImageLayer):
    """Images and label images of a list, in order or shuffled in every epoch.

    Batches of images with a class for every pixel, as SegNet's prototxts name them. Not compared
    with the original. Lines of the list are ``image label``, both without spaces; the pixels of the
    label are classes. Images and labels are cropped and mirrored alike; crops are at random places
    in TRAIN and in the middle in TEST, where SegNet's are at random places, too.

    Source: SegNet (alexgkendall/caffe-segnet), ``src/caffe/layers/dense_image_data_layer.cpp``.
    Shapes: top[0] (N, C, H, W); top[1] labels (N, 1, H, W).

    Raises:
        ConfigError: ``source`` or ``batch_size`` is missing; one of ``new_height`` and
            ``new_width``, or of ``crop_height`` and ``crop_width``, is given without the other;
            ``rand_skip`` is given; or there is a mean file.
        DataError: The list or an image cannot be read, or labels have another size.
    """

    tops = Exactly(2)
    message = "dense_image_data_param"

    def settings(self) -> tuple[ImageDataParameter, TransformationParameter]:
        p, transform = self.param.dense_image_data_param, deepcopy(self.param.transform_param)
        if p.mean_file:
            message = "dense_image_data_param.mean_file is not used; give mean_value"
            raise unsupported("dense_image_data_param.mean_file", message)
        transform.mirror |= p.mirror
        if p.crop_height or p.crop_width:
            transform.crop_h, transform.crop_w = p.crop_height, p.crop_width
        listed = ImageDataParameter(label_type=ImageDataParameter.PIXEL)
        for name in LISTED:
            setattr(listed, name, getattr(p, name))
        return listed, transform

"""DenseImageData: batches of images with a class for every pixel, as SegNet's prototxts name them.

Not compared with the original.

Source: SegNet (alexgkendall/caffe-segnet), ``src/caffe/layers/dense_image_data_layer.cpp``.
"""

from __future__ import annotations

from demitasse.io.proto import ImageDataParameter, TransformationParameter
from demitasse.layers._label_image_base import LabelImageLayer
from demitasse.layers.base import Exactly
from demitasse.layers.checks import unsupported
from demitasse.layers.registry import register

__all__ = ["DenseImageData"]


@register("DenseImageData")
class DenseImageData(LabelImageLayer):
    """Reads images and label images, in the order of a list or shuffled anew in every round.

    Lines of the list are ``image label``, both without spaces; the pixels of the label are classes.
    Images and labels are cropped and mirrored alike; crops are at random places in TRAIN and in
    the middle in TEST, where SegNet's are at random places, too.

    Shapes: top[0] (N, C, H, W); top[1] labels (N, 1, H, W).

    Raises:
        ConfigError: ``source`` or ``batch_size`` is missing; one of ``new_height`` and
            ``new_width``, or of ``crop_height`` and ``crop_width``, is given without the other;
            ``rand_skip`` is given; or there is a mean file.
        DataError: The list or an image cannot be read, or labels have another size; names it.
    """

    tops = Exactly(2)
    message = "dense_image_data_param"

    def settings(self) -> tuple[ImageDataParameter, TransformationParameter]:
        p, transform = self.param.dense_image_data_param, TransformationParameter()
        transform.CopyFrom(self.param.transform_param)
        if p.mean_file:
            message = "dense_image_data_param.mean_file is not used; give mean_value"
            raise unsupported("dense_image_data_param.mean_file", message)
        transform.mirror |= p.mirror
        if p.crop_height or p.crop_width:
            transform.crop_h, transform.crop_w = p.crop_height, p.crop_width
        listed = ImageDataParameter(
            source=p.source,
            batch_size=p.batch_size,
            rand_skip=p.rand_skip,
            shuffle=p.shuffle,
            new_height=p.new_height,
            new_width=p.new_width,
            is_color=p.is_color,
            root_folder=p.root_folder,
            label_type=ImageDataParameter.PIXEL,
        )
        return listed, transform

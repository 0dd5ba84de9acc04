"""ImageSegData: batches of images with a class for every pixel, that a list names.

Not compared with the original.

Source: DeepLab, ``src/caffe/layers/image_seg_data_layer.cpp``.
"""

from __future__ import annotations

from demitasse.io.proto import ImageDataParameter, TransformationParameter
from demitasse.layers._label_image_base import LabelImageLayer
from demitasse.layers.base import Between
from demitasse.layers.registry import register

__all__ = ["ImageSegData"]


@register("ImageSegData")
class ImageSegData(LabelImageLayer):
    """Reads images and their labels, in the order of a list or shuffled anew in every round.

    Lines of the list are ``image label``, both without spaces and looked for as ImageData does.
    With ``label_type: PIXEL`` the label is an image of the same size whose pixels are classes (of
    one with a palette, the numbers of its colours); with ``IMAGE``, which is the default as in
    DeepLab, a class for all pixels; with ``NONE`` there are none, and all pixels have
    ``ignore_label``. Images and labels are cropped and mirrored alike. An image smaller than
    the crop is filled up with the mean, its labels with ``ignore_label``. ``new_height`` and
    ``new_width`` resize labels to the nearest class, where DeepLab would mix classes. Each image
    and its labels are then made larger or smaller by one of ``scale_factors``, drawn at random.

    Shapes: top[0] (N, C, H, W); top[1] labels (N, 1, H, W); top[2], if there is one, height and
    width of each image (N, 1, 1, 2).

    Raises:
        ConfigError: ``source`` or ``batch_size`` is missing; one of ``new_height`` and
            ``new_width`` is given without the other; ``rand_skip`` is given; ``on_error`` is
            unknown; or ``transform_param`` has a mean file, a resize or expand policy, or
            ``scale_factors`` that are not above 0 or come without a crop.
        DataError: The list or an image cannot be read, or labels have another size; names it.
    """

    tops = Between(2, 3)
    message = "image_data_param"

    def settings(self) -> tuple[ImageDataParameter, TransformationParameter]:
        return self.param.image_data_param, self.param.transform_param

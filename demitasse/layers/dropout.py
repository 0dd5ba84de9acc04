"""Dropout: zero a random share of the values in TRAIN, and scale the rest to keep the mean."""

from demitasse.backends import ops
from demitasse.layers.activations import NeuronLayer
from demitasse.layers.base import Blobs, Flags
from demitasse.layers.checks import out_of_range
from demitasse.layers.registry import register_layer

LARGEST = 0xFFFFFFFF


@register_layer("Dropout")
class Dropout(NeuronLayer):
    """Zero a random share of the values in TRAIN, and scale the rest; may run in place.

    y = x * mask / (1 - ratio) in TRAIN, y = x in TEST. With ``scale_train: false`` y = x * mask in
    TRAIN, and y = x * (1 - ratio) in TEST. With ``sample_weights_test`` TEST computes as TRAIN
    does, with a new mask in each pass: the spread of the results measures the uncertainty of the
    net. A value is kept if its random 32-bit word is above ``ratio`` of the largest word. The mask
    is the same on every device, and for each sample with any number of data-parallel ranks.

    Source: Caffe, ``src/caffe/layers/dropout_layer.cpp`` and ``.cu``; the same of Fast R-CNN
    (rbgirshick/caffe-fast-rcnn) for ``scale_train``, of SegNet (alexgkendall/caffe-segnet) for
    ``sample_weights_test``.
    Shapes: bottom any -> top the same.

    Raises:
        ConfigError: ``dropout_ratio`` is not in [0, 1], or is 1 and the layer divides by 1 - ratio.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.dropout_param
        train = self.phase == "TRAIN" or p.sample_weights_test
        ratio = p.dropout_ratio
        if not 0 <= ratio <= 1 or (ratio == 1 and train and p.scale_train):
            raise out_of_range("dropout_param.dropout_ratio", ratio, "a number in [0, 1)")
        self.threshold = int(LARGEST * ratio)
        self.drops = self.random_in_test = train and ratio > 0
        self.factor = 1.0
        if train == p.scale_train:
            self.factor = 1 / (1 - ratio) if train else 1 - ratio

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        rule = self.factor, self.drops, self.threshold
        self.op = ops.Dropout(self.dtype, bottom[0].count, *rule)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        x = bottom[0].read()
        if self.drops:
            mask = self.cast(self.random_words(x.shape) > self.threshold) * self.factor
            self.saved("mask", x.shape).write(mask)
            top[0].write(x * mask)
        elif self.factor != 1:
            top[0].write(x * self.factor)
        elif top[0] is not bottom[0]:
            top[0].write(x)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            dy = top[0].read_diff()
            if self.drops:
                bottom[0].write_diff(dy * self.saved("mask", dy.shape).read())
            elif self.factor != 1:
                bottom[0].write_diff(dy * self.factor)
            elif top[0] is not bottom[0]:
                bottom[0].write_diff(dy)

"""BoxAnnotatorOHEM: of many regions, those that lose most are trained on.

Source: R-FCN (daijifeng001/caffe-rfcn), ``src/caffe/layers/box_annotator_ohem_layer.cu``;
Shrivastava et al., Training Region-based Object Detectors with Online Hard Example Mining.
"""

from __future__ import annotations

from demitasse.layers.base import Blobs, Exactly, Layer
from demitasse.layers.checks import positive, wrong_shapes
from demitasse.layers.detection.mining import hardest
from demitasse.layers.registry import register

__all__ = ["BoxAnnotatorOHEM"]


@register("BoxAnnotatorOHEM")
class BoxAnnotatorOHEM(Layer):
    """Keep labels and weights of the ``roi_per_img`` regions of greatest loss in each image.

    The other labels become ``ignore_label``, the other weights 0. Works on the host; no gradient
    passes, as in R-FCN. Of equal losses the first counts. Not compared with the original, which
    runs on GPUs only.

    Shapes: bottoms regions (R, 5, *places): image, x1, y1, x2, y2; losses and labels (R, 1,
    *places), weights (R, B, *places) -> labels and weights, like those bottoms. There may be no
    places.

    Raises:
        ConfigError: ``roi_per_img`` is missing.
        ShapeError: The bottoms do not belong together.
    """

    bottoms = Exactly(4)
    tops = Exactly(2)
    differentiable = ()
    refuses_gradients = False

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del bottom, top
        p = self.param.box_annotator_ohem_param
        self.count = positive(p.roi_per_img, "box_annotator_ohem_param.roi_per_img")
        self.ignored = p.ignore_label

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        regions, losses, labels, weights = bottom
        r = regions.shape[0] if regions.num_axes > 1 else 0
        places = regions.count_from(2) if regions.num_axes > 1 else 0
        fits = regions.shape[1:2] == (5,) and losses.count == labels.count == r * places
        if not fits or weights.num_axes < 2 or weights.count % max(r * places, 1):
            expected = "regions (R, 5), losses and labels (R, 1), and weights (R, B)"
            raise wrong_shapes("BoxAnnotatorOHEM", expected, *bottom)
        top[0].reshape(labels.shape)
        top[1].reshape(weights.shape)
        self.sizes = (r, places)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        r, places = self.sizes
        image = bottom[0].cpu_data().reshape(r, 5, places)[:, 0].reshape(-1)
        left = ~hardest(image, bottom[1].cpu_data().reshape(-1), self.count)
        labels, weights = top[0].mutable_cpu_data(), top[1].mutable_cpu_data()
        labels[...] = bottom[2].cpu_data()
        labels.reshape(-1)[left] = self.ignored
        weights[...] = bottom[3].cpu_data()
        weights.reshape(r, -1, places).transpose(0, 2, 1)[left.reshape(r, places)] = 0

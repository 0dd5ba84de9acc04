"""Python layers of a small Faster R-CNN: images, targets of anchors, targets of regions."""

import numpy as np

from demitasse.layers.detection.proposal import base_anchors, tile_anchors
from demitasse.layers.user_layer import UserLayer

SIDE, STRIDE = 48, 4
ANCHORS = base_anchors(4, (1,), (3, 5))


def overlaps(boxes, others):
    """Intersection over union of boxes whose last pixels are part of them: (K, 4), (G, 4)."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = np.maximum(high - low + 1, 0).prod(axis=2)
    areas = [(b[:, 2:] - b[:, :2] + 1).prod(axis=1) for b in (boxes, others)]
    return shared / (areas[0][:, None] + areas[1][None, :] - shared)


def deltas(boxes, wanted):
    """What moves boxes to others; the inverse of ``apply_deltas``."""
    size, other = boxes[:, 2:] - boxes[:, :2] + 1, wanted[:, 2:] - wanted[:, :2] + 1
    shift = (wanted[:, :2] + other / 2 - boxes[:, :2] - size / 2) / size
    return np.concatenate([shift, np.log(other / size)], axis=1)


class Filling(UserLayer):
    """Makes all tops anew in forward, and passes no gradient."""

    def reshape(self, bottom, top):
        pass

    def forward(self, bottom, top):
        for blob, values in zip(top, self.make(*(b.data for b in bottom)), strict=True):
            blob.reshape(*values.shape)
            blob.data[...] = values

    def backward(self, top, propagate_down, bottom):
        pass


class Images(Filling):
    """An image with a bright or a dark square, its size and scale, and box and class."""

    def setup(self, bottom, top):
        self.random = np.random.default_rng(0)
        for blob, shape in zip(top, [(1, 1, SIDE, SIDE), (1, 3), (1, 5)], strict=True):
            blob.reshape(*shape)

    def make(self):
        side = int(self.random.integers(10, 20))
        x, y = self.random.integers(0, SIDE - side, 2).tolist()
        kind = int(self.random.integers(1, 3))
        image = self.random.normal(0, 0.1, (1, 1, SIDE, SIDE))
        image[..., y : y + side, x : x + side] += 3 - 2 * kind
        yield image
        yield np.array([[SIDE, SIDE, 1.0]])
        yield np.array([[x, y, x + side - 1, y + side - 1, kind]])


class AnchorTargets(Filling):
    """From scores and objects: labels, boxes, and which of them count."""

    def setup(self, bottom, top):
        cells, count = bottom[0].shape[2:], len(ANCHORS)
        top[0].reshape(1, 1, count * cells[0], cells[1])
        for blob in top[1:]:
            blob.reshape(1, 4 * count, *cells)

    def make(self, scores, objects):
        boxes = tile_anchors(ANCHORS, scores.shape[2:], STRIDE)  # (H, W, A, 4)
        best = overlaps(boxes.reshape(-1, 4), objects[:, :4])[:, 0]
        labels = np.where(best >= 0.5, 1.0, np.where(best < 0.3, 0, -1))
        labels[best.argmax()] = 1
        wanted = deltas(boxes.reshape(-1, 4), np.repeat(objects[:, :4], len(best), axis=0))
        inside = np.repeat((labels == 1)[:, None], 4, axis=1)
        shape = boxes.shape[:3]
        yield labels.reshape(shape).transpose(2, 0, 1).reshape(1, 1, -1, shape[1])
        for values in (wanted, inside, inside / inside[:, 0].sum()):
            yield values.reshape(*shape[:2], -1).transpose(2, 0, 1)[None]


class RegionTargets(Filling):
    """From regions and objects: regions, labels, boxes of each class, and which count."""

    def setup(self, bottom, top):
        for blob, width in zip(top, (5, 1, 12, 12, 12), strict=True):
            blob.reshape(1, width)

    def make(self, regions, objects):
        true = np.concatenate([[[0]], objects[:, :4]], axis=1)
        regions = np.concatenate([regions, true])
        best = overlaps(regions[:, 1:], objects[:, :4])[:, 0]
        labels = np.where(best >= 0.5, objects[0, 4], 0)
        wanted, inside = np.zeros((2, len(regions), 3, 4))
        rows = np.flatnonzero(labels)
        boxes = deltas(regions[rows, 1:], np.repeat(objects[:, :4], len(rows), axis=0))
        wanted[rows, labels[rows].astype(int)] = boxes
        inside[rows, labels[rows].astype(int)] = 1
        yield regions
        yield labels[:, None]
        yield wanted.reshape(len(regions), -1)
        yield inside.reshape(len(regions), -1)
        yield inside.reshape(len(regions), -1)

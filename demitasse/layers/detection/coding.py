"""How boxes are predicted: relative to priors, in one of three codes.

Source: SSD (weiliu89/caffe), ``EncodeBBox`` and ``DecodeBBox`` in ``src/caffe/util/bbox_util.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from demitasse.errors import ErrorCode, NetError

__all__ = ["BoxCode"]


@dataclass(frozen=True)
class BoxCode:
    """A code of boxes.

    Attributes:
        kind: "CORNER" (offsets of the corners), "CORNER_SIZE" (the same in proportion to the prior)
            or "CENTER_SIZE" (offset of the centre in proportion, and logarithms of the sides').
        variance_in_target: Whether codes are not divided by the priors' variances.
    """

    kind: str
    variance_in_target: bool

    def encode(self, boxes: np.ndarray, prior: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """Return what a net should predict for boxes. Shapes: (..., 4), all alike -> the same.

        Raises:
            NetError: A prior is empty, or a box is where its logarithm is needed.
        """
        if self.kind == "CENTER_SIZE":
            size = self._size(prior)
            sides = boxes[..., 2:] - boxes[..., :2]
            self._need_sides(sides, boxes, "object")
            shift = (boxes[..., :2] + boxes[..., 2:] - prior[..., :2] - prior[..., 2:]) / 2
            code = np.concatenate([shift / size, np.log(sides / size)], axis=-1)
        else:
            code = boxes - prior
            if self.kind == "CORNER_SIZE":
                size = self._size(prior)
                code = code / np.concatenate([size, size], axis=-1)
        return code if self.variance_in_target else code / variance

    def decode(self, code: np.ndarray, prior: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """Return the boxes that were predicted. Shapes: (..., 4) that broadcast -> (..., 4).

        Raises:
            NetError: A prior is empty.
        """
        offset = code if self.variance_in_target else variance * code
        if self.kind == "CORNER":
            corners: np.ndarray = prior + offset
            return corners
        size = self._size(prior)
        if self.kind == "CENTER_SIZE":
            boxes = np.empty(np.broadcast_shapes(offset.shape, prior.shape), offset.dtype)
            for low, high in ((0, 2), (1, 3)):  # axes of two elements make numpy slow
                side = size[..., low]
                centre = offset[..., low] * side + (prior[..., low] + prior[..., high]) / 2
                half = np.exp(offset[..., high]) * side / 2
                boxes[..., low], boxes[..., high] = centre - half, centre + half
            return boxes
        moved: np.ndarray = prior + offset * np.concatenate([size, size], axis=-1)
        return moved

    def check(self, prior: np.ndarray) -> None:
        """Refuse priors that nothing can be in proportion to. Shapes: (P, 4).

        Raises:
            NetError: One is empty, where what is predicted is relative to its size.
        """
        if self.kind != "CORNER":
            self._size(prior)

    def _size(self, prior: np.ndarray) -> np.ndarray:
        """Return width and height of priors. Shapes: (..., 4) -> (..., 2)."""
        size: np.ndarray = prior[..., 2:] - prior[..., :2]
        self._need_sides(size, prior, "prior")
        return size

    def _need_sides(self, sides: np.ndarray, boxes: np.ndarray, what: str) -> None:
        """Refuse boxes without an inside."""
        good = sides > 0
        if not good.all():
            good = good.all(axis=-1).reshape(-1)
            wrong = int(np.argmin(good))
            message = (
                f"{what} {wrong} is {boxes.reshape(-1, 4)[wrong].tolist()}; with code_type "
                f"{self.kind} it must have a width and a height above 0"
            )
            raise NetError(message, code=ErrorCode.OUT_OF_RANGE, box=what, index=wrong)

"""Boxes of an image after a crop or another change of its visible region.

A region is (xmin, ymin, xmax, ymax) of the new image, relative to the old image; it may extend
beyond the old image. Boxes are relative to their image.

Source: SSD (weiliu89/caffe), ``ProjectBBox`` and ``MeetEmitConstraint`` in
``src/caffe/util/bbox_util.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from demitasse.io.proto import EmitConstraint

__all__ = ["BOX", "WHOLE", "Keeping", "Region", "coverage", "mirrored"]

Region = tuple[float, float, float, float]

WHOLE: Region = (0.0, 0.0, 1.0, 1.0)
"""Region of an unchanged image."""

BOX = slice(2, 6)
"""Columns of the box in a row of objects; see ``demitasse.io.data.databases.datum``."""


@dataclass(frozen=True)
class Keeping:
    """Filter of objects in a part of an image (``emit_constraint``).

    Attributes:
        emit: "CENTER" (the centre is visible), "MIN_OVERLAP" (more than ``share`` of the box is
            visible), or empty: any part is visible.
        share: See ``emit``.
    """

    emit: str = ""
    share: float = 0.0

    @classmethod
    def of(cls, param: EmitConstraint) -> Keeping:
        """Return the filter of a message."""
        return cls(EmitConstraint.EmitType.Name(param.emit_type), param.emit_overlap)

    def project(self, rows: np.ndarray, region: Region) -> np.ndarray:
        """Return the objects that remain, their boxes clipped to the new image.

        Shapes: (G, 7) -> (kept, 7).
        """
        if region == WHOLE and not self.emit:
            return rows
        edges = np.array(region, rows.dtype)
        boxes = rows[:, BOX]
        kept = np.ones(len(rows), bool)
        if self.emit == "CENTER":
            centre = (boxes[:, :2] + boxes[:, 2:]) / 2
            kept = ((centre >= edges[:2]) & (centre <= edges[2:])).all(axis=1)
        elif self.emit == "MIN_OVERLAP":
            kept = coverage(boxes, edges[None, :]) > self.share
        low, size = np.tile(edges[:2], 2), np.tile(edges[2:] - edges[:2], 2)
        shown = np.clip((boxes - low) / size, 0, 1)
        kept &= (shown[:, 2:] > shown[:, :2]).all(axis=1)
        rows = rows[kept]
        rows[:, BOX] = shown[kept]
        return rows


def mirrored(rows: np.ndarray) -> np.ndarray:
    """Return the objects of a horizontally flipped image. Shapes: (G, 7) -> the same."""
    turned = rows.copy()
    turned[:, 2], turned[:, 4] = 1 - rows[:, 4], 1 - rows[:, 2]
    return turned


def coverage(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the share of each box's area that another box covers.

    Shapes: (G, 4) and (G, 4), of which one may be (1, 4) -> (G,).
    """
    sides = np.minimum(boxes[:, 2:], others[:, 2:]) - np.maximum(boxes[:, :2], others[:, :2])
    shared = np.maximum(sides, 0).prod(axis=1)
    area = np.maximum(boxes[:, 2:] - boxes[:, :2], 0).prod(axis=1)
    share: np.ndarray = np.divide(shared, area, out=np.zeros_like(shared), where=shared > 0)
    return share

"""OpenCV 4's ``cv2.dnn`` for Caffe's nets, name for name: ``from demitasse import cvdnn``.

OpenCV 5 no longer reads Caffe's files. Scripts written for it run over the engine, with the same
outputs; OpenCV itself is not needed. ``cv2.dnn = cvdnn`` makes a script's ``cv2.dnn`` this one.

Source: OpenCV 4, ``modules/dnn/include/opencv2/dnn/dnn.hpp``.
"""

from __future__ import annotations

from demitasse.cvdnn import constants
from demitasse.cvdnn.boxes import NMSBoxes, NMSBoxesBatched
from demitasse.cvdnn.constants import *  # noqa: F403
from demitasse.cvdnn.errors import error
from demitasse.cvdnn.images import (
    Image2BlobParams,
    blobFromImage,
    blobFromImages,
    blobFromImagesWithParams,
    blobFromImageWithParams,
    imagesFromBlob,
)
from demitasse.cvdnn.layer import Layer
from demitasse.cvdnn.models import ClassificationModel, DetectionModel, Model, SegmentationModel
from demitasse.cvdnn.net import Net
from demitasse.cvdnn.reading import readNet, readNetFromCaffe
from demitasse.cvdnn.targets import getAvailableTargets

__all__ = [
    "ClassificationModel",
    "DetectionModel",
    "Image2BlobParams",
    "Layer",
    "Model",
    "NMSBoxes",
    "NMSBoxesBatched",
    "Net",
    "SegmentationModel",
    "blobFromImage",
    "blobFromImageWithParams",
    "blobFromImages",
    "blobFromImagesWithParams",
    "error",
    "getAvailableTargets",
    "imagesFromBlob",
    "readNet",
    "readNetFromCaffe",
]
__all__ += constants.__all__

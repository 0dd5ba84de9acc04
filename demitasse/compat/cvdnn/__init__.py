"""OpenCV 4's ``cv2.dnn`` for Caffe's nets, name for name: ``from demitasse import cvdnn``.

OpenCV 5 no longer reads Caffe's files. Scripts for OpenCV 4 run on Demitasse with the same outputs;
OpenCV is not needed. ``cv2.dnn = cvdnn`` replaces ``cv2.dnn`` in a script.

Source: OpenCV 4, ``modules/dnn/include/opencv2/dnn/dnn.hpp``.
"""

from typing import NoReturn

from demitasse.compat.cvdnn import constants
from demitasse.compat.cvdnn.boxes import NMSBoxes, NMSBoxesBatched
from demitasse.compat.cvdnn.constants import *  # noqa: F403
from demitasse.compat.cvdnn.errors import error
from demitasse.compat.cvdnn.images import (
    Image2BlobParams,
    blobFromImage,
    blobFromImages,
    blobFromImagesWithParams,
    blobFromImageWithParams,
    imagesFromBlob,
)
from demitasse.compat.cvdnn.models import (
    ClassificationModel,
    DetectionModel,
    Model,
    SegmentationModel,
)
from demitasse.compat.cvdnn.net import Layer, Net, readNet, readNetFromCaffe
from demitasse.compat.cvdnn.own_layers import registerLayer, unregisterLayer
from demitasse.compat.cvdnn.targets import getAvailableTargets

__all__ = [
    "ClassificationModel", "DetectionModel", "Image2BlobParams", "Layer", "Model", "NMSBoxes",
    "NMSBoxesBatched", "Net", "SegmentationModel", "blobFromImage", "blobFromImageWithParams",
    "blobFromImages", "blobFromImagesWithParams", "error", "getAvailableTargets",
    "imagesFromBlob", "readNet", "readNetFromCaffe", "registerLayer", "unregisterLayer",
]  # fmt: skip
__all__ += [name for name in vars(constants) if name.startswith(("CV_", "DNN_"))]


def __getattr__(name: str) -> NoReturn:
    message = f"cvdnn has no {name!r}; OpenCV's own cv2.dnn may: keep it under another name"
    raise AttributeError(message)

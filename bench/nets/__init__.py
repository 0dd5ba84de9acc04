"""The nets that are measured, as prototxt, with random weights and one batch of random images.

Each is a function of the batch size, of whether it ends in a loss, and of ``scale``, which widths
are divided by. Dropout is there in nets that do not train.
"""

from nets.classic import caffenet, cifar10_quick, grey, lenet
from nets.dense import densenet121
from nets.detection import ssd_mobilenet
from nets.googlenet import googlenet
from nets.recurrent import lrcn
from nets.residual import resnet18, resnet20, resnet50
from nets.segmentation import fcn, segnet
from nets.small import mobilenet, squeezenet
from nets.vgg import vgg16

__all__ = ["FORWARD_ONLY", "NETS"]

NETS = {
    "lenet": lenet,
    "cifar10_quick": cifar10_quick,
    "caffenet": caffenet,
    "googlenet": googlenet,
    "resnet50": resnet50,
    "squeezenet": squeezenet,
    "mobilenet": mobilenet,
    "vgg16": vgg16,
    "resnet18": resnet18,
    "resnet20": resnet20,
    "densenet121": densenet121,
    "grey": grey,
}
"""Classifiers."""

FORWARD_ONLY = {
    "ssd_mobilenet": ssd_mobilenet,
    "fcn": fcn,
    "segnet": segnet,
    "lrcn": lrcn,
}
"""What is measured in forward passes alone."""

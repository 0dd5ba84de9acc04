"""The nets that are measured, as prototxt, with random weights and one batch of random images.

Each is a function of the batch size, of whether it ends in a loss, and of ``scale``, which widths
are divided by. Dropout is there in nets that do not train.
"""

from nets.classic import caffenet, cifar10_quick, lenet
from nets.googlenet import googlenet
from nets.residual import resnet50
from nets.small import mobilenet, squeezenet

__all__ = ["NETS"]

NETS = {
    "lenet": lenet,
    "cifar10_quick": cifar10_quick,
    "caffenet": caffenet,
    "googlenet": googlenet,
    "resnet50": resnet50,
    "squeezenet": squeezenet,
    "mobilenet": mobilenet,
}

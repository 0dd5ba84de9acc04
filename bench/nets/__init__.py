"""The nets that are measured, as prototxt, with random weights and one batch of random images.

Each is a function of the batch size, of whether it ends in a loss, and of ``scale``, which widths
are divided by. Dropout is there in nets that do not train. What a net gives is called "prob".
"""

from nets.classic import caffenet, cifar10_quick, grey, lenet
from nets.dense import densenet121
from nets.detection import pose_machine, ssd_mobilenet, tiny_yolo
from nets.faces import face_units, pfld, rfb_face, slim_face
from nets.flow import flownet
from nets.generators import autoencoder, dcgan, fsrcnn, srcnn, vdsr
from nets.googlenet import googlenet
from nets.inception import inception
from nets.mobile import mobilenet_v2, mobilenet_v3, shufflenet, shufflenet_v2
from nets.recurrent import char_rnn, lrcn
from nets.residual import resnet18, resnet20, resnet26, resnet50
from nets.resnext import resnext50, senet50
from nets.segmentation import deeplab, fcn, lanes, segnet, unet
from nets.small import mobilenet, quarter_mobilenet, squeezenet
from nets.text import text_cnn
from nets.vgg import vgg16
from nets.video import c3d

__all__ = ["FORWARD_ONLY", "NETS", "OTHERS", "TRAINED"]

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
    "lanes": lanes,
    "lrcn": lrcn,
}
"""What is measured in forward passes alone."""

OTHERS = {
    "mobilenet_v2": mobilenet_v2,
    "mobilenet_v3": mobilenet_v3,
    "shufflenet": shufflenet,
    "shufflenet_v2": shufflenet_v2,
    "resnext50": resnext50,
    "senet50": senet50,
    "inception": inception,
    "tiny_yolo": tiny_yolo,
    "unet": unet,
    "deeplab": deeplab,
    "dcgan": dcgan,
    "autoencoder": autoencoder,
    "srcnn": srcnn,
    "fsrcnn": fsrcnn,
    "vdsr": vdsr,
    "char_rnn": char_rnn,
    "text_cnn": text_cnn,
    "resnet26": resnet26,
    "quarter_mobilenet": quarter_mobilenet,
    "flownet": flownet,
    "slim_face": slim_face,
    "rfb_face": rfb_face,
    "face_units": face_units,
    "pfld": pfld,
    "c3d": c3d,
    "pose_machine": pose_machine,
}
"""What else people run; other engines get forward passes as the package exports them."""

TRAINED = frozenset(NETS) | {"mobilenet_v2", "resnext50", "shufflenet"}
"""Nets whose steps are measured, too."""

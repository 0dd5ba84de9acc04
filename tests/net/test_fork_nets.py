"""Public nets that need layers of the forks: they are built, with the shapes they are known for."""

import math

import pytest

from demitasse.io.proto import NetParameter
from demitasse.io.proto.text import parse
from demitasse.net import Net

SSD = "chuanqi305+MobileNet-SSD/deploy.prototxt"
TEXTBOX = "opencv+opencv_contrib/modules/text/samples/textbox.prototxt"
SQUEEZE = "opencv+opencv_contrib/modules/dnn_objdetect/samples/data/SqueezeDet_deploy.prototxt"
UNTRIMMED = (
    "wanglimin+UntrimmedNet/thumos_proto/spatial_untrimmednet_hard_bn_inception_deploy.prototxt"
)
PSPNET = "hszhao+PSPNet/evaluation/prototxt/pspnet50_ADE20K_473.prototxt"
RCNN = "rbgirshick+fast-rcnn/models/VGG16/compressed/test.prototxt"
SEGNET = "alexgkendall+SegNet-Tutorial/Models/segnet_inference.prototxt"
SEGNET_TRAIN = "alexgkendall+SegNet-Tutorial/Models/segnet_basic_train.prototxt"
FACE = "ydwen+caffe-face/face_example/face_train_test.prototxt"
CUNET = "nagadomi+waifu2x/appendix/caffe_prototxt/cunet.prototxt"


def made(folder, file, phase="TEST", data=None):
    """Build a net; ``data`` gives shapes to the tops of its data layers, whose files are not there.

    Fields of those layers that only their fork has are left out.
    """
    path = folder / "prototxt" / file
    message = parse(path.read_text(), NetParameter, ignore_unknown_fields=data is not None).message
    if data is not None:
        kept = [layer for layer in message.layer if layer.bottom]
        del message.layer[:]
        for name, shape in data.items():
            layer = message.layer.add(name=name, type="Input", top=[name])
            layer.input_param.shape.add().dim.extend(shape)
        message.layer.extend(kept)
    return Net(message, phase, device="numpy")


@pytest.mark.parametrize(
    ("file", "shapes"),
    [
        (SSD, {"mbox_priorbox": (1, 2, 1917 * 4), "detection_out": (1, 1, 1, 7)}),
        (SQUEEZE, {"delta_bbox": (1, 23, 23, 36), "class_scores": (1, 4761, 20)}),
        (UNTRIMMED, {"fc-action": (1, 101)}),
        (RCNN, {"pool5": (1, 512, 7, 7), "cls_prob": (1, 21)}),
        (CUNET, {"Eltwise4": (1, 3, 256, 256)}),
    ],
    ids=["MobileNet-SSD", "SqueezeDet", "UntrimmedNet", "Fast R-CNN", "waifu2x"],
)
def test_deployed_nets(file, shapes, reference_data):
    net = made(reference_data, file)

    assert {name: net.blobs[name].shape for name in shapes} == shapes


@pytest.mark.slow
def test_pspnet(reference_data):
    net = made(reference_data, PSPNET)

    assert net.blobs["conv6_interp"].shape == (1, 150, 473, 473)


def test_textboxes_have_two_centres_in_each_cell(reference_data):
    net = made(reference_data, TEXTBOX)

    cells, boxes = math.prod(net.blobs["conv4_3_norm"].shape[2:]), 6 * 2
    assert net.blobs["conv4_3_norm_mbox_priorbox"].shape == (1, 2, cells * boxes * 4)


def test_segnet(reference_data):
    net = made(reference_data, SEGNET, data={"data": (1, 3, 360, 480)})

    assert net.blobs["pool5"].shape == (1, 512, 12, 15)
    assert net.blobs["pool5_D"].shape == (1, 512, 23, 30)
    assert net.blobs["prob"].shape == (1, 11, 360, 480)


def test_segnet_is_trained_with_class_weights(reference_data):
    data = {"data": (1, 3, 360, 480), "label": (1, 1, 360, 480)}

    net = made(reference_data, SEGNET_TRAIN, "TRAIN", data)

    assert net.layer_by_name("loss").class_weights[:2] == pytest.approx([0.2595, 0.1826])


def test_face_features_are_trained_with_centres(reference_data):
    net = made(reference_data, FACE, "TRAIN", {"data": (4, 3, 112, 96), "label": (4,)})

    assert net.params["center_loss"][0].shape == (10572, 512)
    assert net.structure.blob_loss_weights[net.blob_names.index("center_loss")] == pytest.approx(
        0.008
    )

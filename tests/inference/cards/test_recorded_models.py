"""Trained models and photos: inputs as they were recorded, and what is found in them."""

import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

import demitasse as dm
from demitasse.inference.cards.card import Preprocess
from demitasse.inference.cards.card_file import FileOverrides
from demitasse.inference.cards.outputs import anchor_boxes
from demitasse.inference.cards.predictions import Box
from demitasse.inference.cards.preprocessing import Preprocessor
from demitasse.inference.cards.published import published_card, similar_cards
from demitasse.io.data.images.codecs import read_image
from demitasse.io.data.images.colors import bgr_to_luma
from demitasse.io.proto import read_net

SQUEEZENET = "squeezenet10_imagenet"
YU, ULTRA = "libfacedetection_v1_ssd", "ultralight_rfb320"

RECORDED = {
    SQUEEZENET: ("cat.jpg", Preprocess("bgr", mean=(104, 117, 123))),
    YU: ("faces_27.jpg", Preprocess("bgr", mean=(103.94, 116.78, 123.68))),
    ULTRA: ("faces_27.jpg", Preprocess("rgb", mean=(127,), scale=(1 / 128,))),
}


def load(folder, name, **options):
    entry = json.loads((folder / "refs/index.json").read_text())[name]
    models = folder / "models"
    return dm.load_model(models / entry["net"], models / entry["weights"], **options)


@pytest.mark.parametrize("name", RECORDED)
def test_images_are_prepared_as_they_were_for_the_recording(reference_data, name):
    photo, how = RECORDED[name]
    with np.load(reference_data / f"refs/{name}/input.npz") as file:
        [recorded] = (file[key][0] for key in file)

    found = Preprocessor(how, recorded.shape)(
        read_image(reference_data / "images" / photo, "color")
    )

    np.testing.assert_array_equal(found.values, recorded)


ZOO = {
    "alexnet": "BVLC+caffe/models/bvlc_alexnet/deploy.prototxt",
    "caffenet": "BVLC+caffe/models/bvlc_reference_caffenet/deploy.prototxt",
    "flickr_style": "BVLC+caffe/models/finetune_flickr_style/deploy.prototxt",
    "googlenet": "BVLC+caffe/models/bvlc_googlenet/deploy.prototxt",
    "mobilenet_ssd": "chuanqi305+MobileNet-SSD/deploy.prototxt",
    "rcnn_ilsvrc13": "BVLC+caffe/models/bvlc_reference_rcnn_ilsvrc13/deploy.prototxt",
    "resnet50": "KaimingHe+deep-residual-networks/prototxt/ResNet-50-deploy.prototxt",
    "resnet101": "KaimingHe+deep-residual-networks/prototxt/ResNet-101-deploy.prototxt",
    "resnet152": "KaimingHe+deep-residual-networks/prototxt/ResNet-152-deploy.prototxt",
}


@pytest.mark.parametrize("key", ZOO)
def test_published_cards_fit_published_nets(reference_data, key, tmp_path):
    net = reference_data / "prototxt" / ZOO[key]
    (tmp_path / "ResNet_mean.binaryproto").touch()
    card = published_card(key).card(FileOverrides(net, [tmp_path / "w.caffemodel"]))

    tops = {top for layer in read_net(net).message.layer for top in layer.top}

    assert [one.key for one in similar_cards(net)] == [key]  # by name and size of the input
    assert tops >= set(card.outputs)


@pytest.mark.parametrize("name", RECORDED)
def test_the_models_are_recognised(reference_data, name):
    card = load(reference_data, name).card
    _, how = RECORDED[name]

    assert card.preprocess.channels == how.channels
    np.testing.assert_allclose(card.preprocess.mean, how.mean)
    np.testing.assert_allclose(card.preprocess.scale, how.scale)


def test_our_names_are_those_of_the_synsets(reference_data):
    ours = published_card("caffenet").card(FileOverrides()).labels
    lines = (reference_data / "data/synset_words.txt").read_text().splitlines()
    words = [line.strip("'").split(" ", 1)[1].replace("''", "'").split(", ") for line in lines]

    renamed = {one for one, known in zip(ours, words, strict=True) if one not in known}

    assert renamed == {
        "rooster", "kite (bird)", "crane (bird)", "sorrel horse", "crane (machine)", "ear of corn",
    }  # fmt: skip


def test_squeezenet_takes_the_cat_for_a_fox(reference_data):
    top = json.loads((reference_data / "refs/index.json").read_text())[SQUEEZENET]["top"]
    labels = reference_data / "data/synset_words.txt"
    predictor = load(reference_data, SQUEEZENET, labels=labels)

    [answer] = predictor.predict(reference_data / "images/cat.jpg")

    assert answer.scores.sum() == pytest.approx(1, abs=1e-5)
    [best, second, *_] = [label for label, _ in answer.top()]
    wanted = re.findall(r"n\d+ ([^;]+?) [\d.]+(?:;|$)", top)
    assert wanted[0] in best  # the crop is another one than that of the recording
    assert wanted[1] in second


def test_fsrcnn_enlarges_a_photo_better_than_a_bicubic_kernel(reference_data, tmp_path):
    folder = reference_data / "models/fsrcnn_x3"
    for name, source in (("net.prototxt", "ref_net.prototxt"),
                         ("net.caffemodel", "snapshot_iter_2546000.caffemodel")):  # fmt: skip
        shutil.copy(folder / source, tmp_path / name)
    (tmp_path / "model.toml").write_text(
        '[model]\nnet = "net.prototxt"\nweights = "net.caffemodel"\ntask = "image"\n'
        f'[preprocess]\nchannels = "y"\nresize = "none"\nscale = {1 / 255}\n'
    )
    photo = Image.open(reference_data / "images/comic.bmp").crop((0, 0, 249, 360))
    small = photo.resize((83, 120), Image.Resampling.BICUBIC)

    [answer] = dm.load_model(tmp_path).predict(small)

    plain = np.asarray(small.resize(photo.size, Image.Resampling.BICUBIC))
    made, bicubic, wanted = (
        bgr_to_luma(one.transpose(2, 0, 1)[::-1])
        for one in (answer.pixels, plain, np.asarray(photo))
    )
    assert made.shape == (358, 247)  # without the first two rows and columns of the photo
    errors = [np.square(one - wanted[2:, 2:]).mean() for one in (made, bicubic[2:, 2:])]
    assert errors[0] < 0.9 * errors[1]


def test_boxes_of_a_detection_output_are_those_that_opencv_found(reference_data):
    with np.load(reference_data / f"refs/{YU}/opencv.npz") as file:
        rows = file["detection_out"][0, 0]
    best = rows[np.argsort(-rows[:, 2])][:5]

    [answer] = load(reference_data, YU, threshold=0.01).predict(
        reference_data / "images/faces_27.jpg"
    )

    for row, box in zip(best, answer.boxes[:5], strict=True):
        edges = row[3:] * [1024, 609, 1024, 609]
        np.testing.assert_allclose(box.score, row[2], atol=1e-5)
        np.testing.assert_allclose([box.xmin, box.ymin, box.xmax, box.ymax], edges, atol=0.05)


def test_boxes_of_anchors_are_those_of_the_recorded_predictions(reference_data):
    predictor = load(reference_data, ULTRA)
    with np.load(reference_data / f"refs/{ULTRA}/opencv.npz") as file:
        codes, scores = file["boxes"][0], file["scores"][0, :, 1]
    anchors = predictor.card.detect.anchors
    boxes, variance = anchor_boxes(anchors, (240, 320))
    best = int(scores.argmax())
    size = boxes[best, 2:] - boxes[best, :2]
    centre = boxes[best, :2] + size / 2 + codes[best, :2] * variance[best, :2] * size
    half = np.exp(codes[best, 2:] * variance[best, 2:]) * size / 2
    edges = np.concatenate([centre - half, centre + half]) * [1024, 609, 1024, 609]

    [answer] = predictor.predict(reference_data / "images/faces_27.jpg")

    assert len(boxes) == len(scores) == 4420
    assert len(answer.boxes) == 15
    [first, *_] = answer.boxes
    assert isinstance(first, Box)
    assert first.score == pytest.approx(scores[best], abs=1e-4)
    np.testing.assert_allclose([first.xmin, first.ymin, first.xmax, first.ymax], edges, atol=0.05)

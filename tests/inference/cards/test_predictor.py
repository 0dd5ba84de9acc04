"""Predictor: images in, answers out."""

import pickle

import numpy as np
import pytest
from expect_error import expect_error, expect_warning
from PIL import Image

import demitasse as dm
from demitasse.errors import ConfigError, DataError, ErrorCode, WeightsError
from demitasse.inference.cards.predictions import draw_prediction

COLORS = {"blue": (10, 20, 200), "green": (10, 200, 20), "red": (200, 10, 20)}
LABELS = 'labels = ["blue", "green", "red"]'


@pytest.fixture
def colors(model, card):
    """A model that names the strongest colour."""
    return dm.load_model(model("classify", card(model=LABELS)))


def test_files_pictures_and_pixels_are_images(colors, photo):
    path = photo("red.png", COLORS["red"])
    picture = Image.open(path)

    answers = colors.predict([path, str(path), picture, np.asarray(picture)])

    assert [answer.top(1) for answer in answers] == [[("red", 200.0)]] * 4


@pytest.mark.parametrize("kind", ["16.png", "cmyk.jpg", "palette.png", "alpha.tif", "float.tif"])
def test_pictures_have_the_pixels_of_their_files(colors, tmp_path, kind):
    path, gray = tmp_path / kind, np.arange(256).reshape(16, 16)
    pixels = gray.astype(np.uint8)
    Image.fromarray(
        {
            "16.png": (gray * 257).astype(np.uint16),
            "cmyk.jpg": np.asarray(Image.fromarray(pixels).convert("CMYK")),
            "palette.png": pixels,
            "alpha.tif": np.dstack([pixels, pixels[::-1], pixels.T, pixels]),
            "float.tif": gray.astype(np.float32),
        }[kind],
        "CMYK" if kind == "cmyk.jpg" else None,
    ).save(path)
    if kind == "palette.png":
        Image.fromarray(np.dstack([pixels, pixels.T, pixels])).quantize(9).save(path)
    if kind == "float.tif":
        with (
            Image.open(path) as picture,
            expect_error(ConfigError, ErrorCode.INVALID, field="images"),
        ):
            colors.pixels(picture)
        return

    with Image.open(path) as picture:
        np.testing.assert_array_equal(colors.pixels(picture), colors.pixels(path))


def test_one_image_is_a_list_of_one(colors, photo):
    [answer] = colors.predict(photo("green.png", COLORS["green"]))

    assert answer.top(2) == [("green", 200.0), ("blue", 20.0)]


def test_brightness_alone_is_an_image(colors):
    [answer] = colors.predict(np.full((5, 5), 7, np.uint8))

    assert answer.scores.tolist() == [7, 7, 7]


@pytest.mark.parametrize(
    "image", [3, np.zeros((4, 4, 3)), np.zeros((4, 4, 2), np.uint8), np.zeros((0, 4), np.uint8)]
)
def test_anything_else_is_none(colors, image):
    with expect_error(ConfigError, ErrorCode.INVALID, field="images"):
        colors.predict([image])


def test_a_broken_image_is_an_error_that_names_it(colors, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"none")

    with expect_error(DataError, mentions="broken.png"):
        colors.predict(tmp_path / "broken.png")


def test_old_names_work_and_warn(colors, monkeypatch):
    from demitasse.core import deprecated
    from demitasse.inference import cards

    monkeypatch.setattr(deprecated, "_warned", set())

    with expect_warning(DeprecationWarning, mentions=["batch", "batch_size"]):
        assert len(colors.predict([np.zeros((4, 4, 3), np.uint8)] * 2, batch=1)) == 2
    with expect_warning(DeprecationWarning, mentions=["Answer", "Prediction"]):
        assert cards.Answer is cards.Prediction


def test_streams_keep_their_order_and_go_on_after_broken_images(colors):
    def pixels(value):
        if value % 3 == 2:
            raise DataError("broken")
        return np.full((3, 4, 4), value, np.uint8)

    found = list(colors.stream(range(8), pixels, batch_size=3))

    assert [item for item, _ in found] == list(range(8))
    broken = [item for item, answer in found if isinstance(answer, DataError)]
    assert broken == [2, 5]
    assert all(a.scores[0] == item for item, a in found if item not in broken)


def test_images_of_several_sizes_run_in_turn(model, card):
    keep = model("classify", card(preprocess='resize = "none"'))
    sizes = [(4, 4), (4, 4), (5, 9), (4, 4)]

    answers = dm.load_model(keep).predict(
        [np.full((*size, 3), number, np.uint8) for number, size in enumerate(sizes)]
    )

    assert [answer.scores[0] for answer in answers] == [0, 1, 2, 3]


def test_a_card_may_say_how_many_images_run_at_once(model, card):
    alone = dm.load_model(model("classify", card(model="batch = 1")))

    alone.predict([np.zeros((4, 4), np.uint8)] * 3)

    assert alone.net.blobs["data"].shape[0] == 1


def test_scores_become_probabilities(model, card):
    softmax = card(preprocess="scale = 0.01", rest="[classify]\nsoftmax = true")
    predictor = dm.load_model(model("classify", softmax))

    [answer] = predictor.predict(np.full((4, 4, 3), (100, 200, 100), np.uint8))

    np.testing.assert_allclose(answer.scores, np.exp([1, 2, 1]) / np.exp([1, 2, 1]).sum(), 1e-5)


@pytest.mark.parametrize("kind", ["detect", "anchors"])
def test_boxes_are_in_pixels_of_the_image(model, card, photo, kind):
    predictions = """
[detect]
boxes = "place"
scores = "score"
[detect.anchors]
sizes = [[2]]
steps = [4]
"""
    rest = predictions if kind == "anchors" else ""
    labels = 'labels = ["nothing", "thing"]'
    predictor = dm.load_model(model(kind, card("detect", labels, rest=rest)))
    path = photo("wide.png", COLORS["red"], size=(16, 8))

    found = predictor.predict([path, path])

    for answer in found:
        [box] = answer.boxes
        assert (box.index, box.label, box.score) == (1, "thing", 0.75)
        # half of the input's sides, in the middle
        assert (box.xmin, box.ymin, box.xmax, box.ymax) == (4, 2, 12, 6)


def test_a_threshold_leaves_boxes_out(model, card):
    folder = model("detect", card("detect"))
    image = np.zeros((4, 4), np.uint8)

    [found] = dm.load_model(folder, threshold=0.8).predict(image)

    assert found.as_dict() == {"boxes": []}


def test_pixels_get_classes(model, card):
    predictor = dm.load_model(model("segment", card("segment", 'labels = ["other", "blue"]')))
    image = np.zeros((8, 8, 3), np.uint8)
    image[:, 6:, 2] = 255

    [answer] = predictor.predict(image)

    assert answer.mask.shape == (8, 8)
    assert answer.shares() == [(0, "other", 48), (1, "blue", 16)]
    assert answer.mask[0].tolist() == [0, 0, 0, 0, 0, 0, 1, 1]


def test_blobs_are_features(model, card):
    predictor = dm.load_model(model("features", card("features", 'output = ["means", "data"]')))

    [answer] = predictor.predict(np.full((4, 4), 9, np.uint8))

    assert {name: array.shape for name, array in answer.values.items()} == {
        "means": (3, 1, 1),
        "data": (3, 4, 4),
    }
    assert answer.as_dict()["features"]["means"] == {"shape": [3, 1, 1], "values": [9, 9, 9]}


@pytest.mark.parametrize(
    ("kind", "task", "changes", "fault"),
    [
        ("classify", "classify", {"model": 'labels = ["a", "b"]'}, {"got": 2, "expected": 3}),
        ("classify", "detect", {}, {"task": "detect"}),
        ("classify", "segment", {}, None),
        ("segment", "classify", {}, {"task": "classify"}),
        ("anchors", "classify", {}, {"field": "output", "got": ["place", "score"]}),
        ("classify", "classify", {"model": 'input = "date"'}, {"field": "input", "got": "date"}),
        ("classify", "classify", {"preprocess": 'channels = "gray"'}, {"field": "channels"}),
    ],
)
def test_a_card_that_does_not_fit_its_net_says_so(model, card, kind, task, changes, fault):
    folder = model(kind, card(task, **changes))

    def run():
        return dm.load_model(folder).predict(np.zeros((4, 4), np.uint8))

    if fault is None:  # one place for each class is a small map
        assert run()[0].mask.shape == (4, 4)
    else:
        with expect_error(ConfigError, **fault):
            run()


def test_a_training_net_is_refused(model, card):
    folder = model("classify", card())
    text = 'layer { name: "d" type: "DummyData" top: "data" dummy_data_param { shape { dim: 1 } } }'
    (folder / "net.prototxt").write_text(text)
    (folder / "net.caffemodel").write_bytes(b"")

    with expect_error(ConfigError, ErrorCode.MISSING, field="input"):
        dm.load_model(folder)


def test_a_predictor_can_be_sent_to_another_process(colors, photo):
    again = pickle.loads(pickle.dumps(colors))

    path = photo("blue.png", COLORS["blue"])
    assert again.predict(path)[0].top(1) == colors.predict(path)[0].top(1) == [("blue", 200.0)]


def test_a_predictor_runs_on_every_device(model, card, backend):
    predictor = dm.load_model(model("classify", card(model=LABELS)), device=backend)

    [answer] = predictor.predict(np.full((9, 7, 3), (1, 2, 3), np.uint8))

    assert answer.top(1) == [("blue", 3.0)]


def test_answers_are_drawn(model, card):
    image = np.zeros((8, 8, 3), np.uint8)
    image[:, 6:, 2] = 255
    segment = dm.load_model(model("segment", card("segment")))
    [answer] = segment.predict(image)

    picture = draw_prediction(segment.pixels(image), answer)

    assert picture.shape == (3, 8, 8)
    assert (picture[:, :, :6] == 0).all()
    assert (picture[:, :, 6:].transpose(1, 2, 0) != (255, 0, 0)).any(axis=2).all()


def test_layers_without_weights_are_told(model, card):
    folder = model("segment", card("segment"))
    net = folder / "net.prototxt"
    net.write_text(net.read_text().replace('name: "score"', 'name: "renamed"'))

    with pytest.warns(RuntimeWarning, match=r"net\.caffemodel.* renamed"):
        found = dm.load_model(folder)

    assert found.missing == ["renamed"]


def test_damaged_weights_are_refused(model, card):
    folder = model("classify", card())
    (folder / "net.caffemodel").write_bytes(b"\xff")

    with pytest.raises(WeightsError):
        dm.load_model(folder)

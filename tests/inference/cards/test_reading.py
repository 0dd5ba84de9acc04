"""What a card may say, and how it is refused."""

import re
import tomllib
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse.errors import ConfigError
from demitasse.inference.cards import read_card
from demitasse.inference.cards.card import Anchors
from demitasse.inference.cards.reading import Given, card_of
from demitasse.inference.cards.table import Table


def test_a_card_says_what_a_net_needs(model, card):
    folder = model(
        "classify",
        card(
            model='labels = ["blue", "green", "red"]\nname = "means"\nlicence = "BSD"',
            preprocess="size = 8\ncrop = [4, 4]\nmean = [1, 2, 3]\nscale = 0.5",
            rest="[classify]\nsoftmax = true",
        ),
    )

    read = read_card(folder / "model.toml")

    assert read.net == folder / "net.prototxt"
    assert read.weights == (folder / "net.caffemodel",)
    assert (read.name, read.licence) == ("means", "BSD")
    assert read.labels == ("blue", "green", "red")
    assert read.softmax
    how = read.preprocess
    assert (how.size, how.resize, how.crop) == ((8, 8), "warp", (4, 4))
    assert (how.mean, how.scale) == ((1, 2, 3), (0.5,))


def test_labels_may_be_in_a_file(model, card):
    folder = model("classify", card(model='labels = "names.txt"'))
    (folder / "names.txt").write_text("blue\n green \nred\n\n")

    assert read_card(folder / "model.toml").labels == ("blue", "green", "red")


def test_anchors_belong_to_predictions(model, card):
    anchors = """
[detect]
boxes = "place"
scores = "score"
threshold = 0.25
[detect.anchors]
sizes = [[2, 3]]
steps = [4]
"""
    folder = model("anchors", card("detect", rest=anchors))

    detect = read_card(folder / "model.toml").detect

    assert detect.threshold == 0.25
    assert detect.anchors == Anchors(((2, 3),), (4,), (0.1, 0.1, 0.2, 0.2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "clasify"}, r"\[model\]: task must be one of .*did you mean 'classify'"),
        ({"model": 'lables = "x"'}, r"\[model\]: there is no 'lables' here; did you mean 'labels'"),
        ({"rest": "[preproces]"}, "there is no 'preproces' here; did you mean 'preprocess'"),
        ({"preprocess": 'channels = "yuv"'}, r"channels must be one of \"bgr\", \"rgb\", \"gray\""),
        ({"preprocess": "mean = [1, 2]"}, r"mean must be 1 or 3 numbers, it is \[1, 2\]"),
        ({"preprocess": "mean = [nan, 0, 0]"}, "mean must be 1 or 3 numbers"),
        ({"preprocess": "scale = true"}, "scale must be 1 or 3 numbers, it is True"),
        ({"preprocess": "size = 100000"}, "size must be one number of pixels or .*1 to 16384"),
        ({"preprocess": "size = [1, 2, 3]"}, "size must be one number of pixels or"),
        ({"preprocess": 'resize = "short side"'}, "needs size"),
        ({"preprocess": 'resize = "none"\nsize = 4'}, "leave size out"),
        ({"model": "batch = -1"}, "batch must be a whole number from 0"),
        ({"model": "input = 3"}, "input must be a text"),
        ({"model": "output = [1]"}, "output must be a text or a list"),
        ({"rest": "[classify]\nsoftmax = 1"}, "softmax must be true or false, it is 1"),
        ({"rest": "[detect]\nthreshold = 2"}, "threshold must be a number from 0 to 1"),
        ({"rest": '[detect]\nboxes = "a"'}, "go together"),
        (
            {"rest": '[detect]\nboxes="a"\nscores="b"\n[detect.anchors]\nsizes=[[1]]\nsteps=[1,2]'},
            "sizes has 1 lists and steps 2 numbers",
        ),
        ({"rest": "[detect]\nanchors = 3"}, "anchors must be a table"),
        ({"rest": "= 3"}, "the card cannot be read"),
    ],
)
def test_what_a_card_cannot_say_is_refused(model, card, changes, message):
    folder = model("classify", card(**changes))

    with pytest.raises(ConfigError, match=message):
        read_card(folder / "model.toml")


def test_a_card_without_channels_is_refused(model):
    folder = model("classify", '[model]\ntask = "classify"\nnet = "net.prototxt"\n')

    with pytest.raises(ConfigError, match=r"\[preprocess\]: channels is missing; it is one of"):
        read_card(folder / "model.toml")


@pytest.mark.parametrize("name", ["../secret.txt", "/etc/hostname", "sub/../../secret.txt", "link"])
def test_files_outside_of_the_folder_are_refused(model, card, name, tmp_path):
    (tmp_path / "secret.txt").write_text("secret\n")
    folder = model("classify", card(model=f'labels = "{name}"'))
    (folder / "sub").mkdir()
    (folder / "link").symlink_to(tmp_path / "secret.txt")

    with pytest.raises(ConfigError, match=re.escape(f"'{name}' lies outside of the card's folder")):
        read_card(folder / "model.toml")


@pytest.mark.parametrize("name", ["absent.txt", "a\\u0000b"])
def test_files_that_are_not_there_are_refused(model, card, name):
    folder = model("classify", card(model=f'labels = "{name}"'))

    with pytest.raises(ConfigError, match="no file"):
        read_card(folder / "model.toml")


def test_a_link_within_the_folder_is_followed(model, card):
    folder = model("classify", card(model='labels = "link"'))
    (folder / "names.txt").write_text("a\nb\nc\n")
    (folder / "link").symlink_to(folder / "names.txt")

    assert read_card(folder / "model.toml").labels == ("a", "b", "c")


def test_a_card_of_a_megabyte_is_refused(model, card):
    folder = model("classify", card(rest="#" * (1 << 20)))

    with pytest.raises(ConfigError, match="a card has at most 1048576 bytes"):
        read_card(folder / "model.toml")


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
TABLES = {
    "model": ("net", "weights", "task", "labels", "input", "output", "batch", "name", "source"),
    "preprocess": ("channels", "size", "resize", "crop", "mean", "scale"),
    "classify": ("softmax",),
    "detect": ("threshold", "boxes", "scores", "overlap", "background", "anchors"),
}


@given(data=st.data())
def test_odd_values_are_refused_and_nothing_worse(data):
    tables = {
        "model": {"task": "detect"},
        "preprocess": {"channels": "bgr"},
        "detect": {"boxes": "a", "scores": "b", "anchors": {"sizes": [[1]], "steps": [1]}},
    }
    name = data.draw(st.sampled_from(sorted(TABLES)))
    table = tables.setdefault(name, {})
    if name == "detect" and data.draw(st.booleans()):
        table, keys = table["anchors"], ("sizes", "steps", "variance")
    else:
        keys = TABLES[name]
    table[data.draw(st.sampled_from(keys))] = data.draw(ODD)

    with suppress(ConfigError):
        card_of(Table(tables, "card"), Path("/nowhere"), Given())


def test_the_guide_names_every_key():
    text = (Path(__file__).parents[3] / "docs/run.md").read_text()

    for key in (*chain(*TABLES.values()), "licence", "sizes", "steps", "variance"):
        assert f"`{key}`" in text or f".{key}]`" in text


def test_the_card_in_the_guide_can_be_read():
    text = (Path(__file__).parents[3] / "docs/run.md").read_text()
    [shown] = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    values = tomllib.loads(shown)
    del values["model"]["net"], values["model"]["weights"]

    card = card_of(Table(values, "card"), Path("/nowhere"), Given())

    assert card.preprocess.resize == "short side"


def test_a_card_needs_a_net(model, card):
    folder = model("classify", card().replace('net = "net.prototxt"', ""))

    with pytest.raises(ConfigError, match=r"\[model\] net is missing"):
        read_card(folder / "model.toml")

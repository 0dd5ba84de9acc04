"""What a card may say, and how it is refused."""

import re
import tomllib
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pytest
from expect_error import expect_error
from hypothesis import given
from hypothesis import strategies as st
from needs import needs

from demitasse.errors import ConfigError, ErrorCode
from demitasse.inference.cards import read_card
from demitasse.inference.cards.card import Anchors, ImageOutput
from demitasse.inference.cards.card_file import (
    FileOverrides,
    Table,
    card_from_table,
    format_card,
    read_labels,
)


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


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_labels_may_be_in_a_file(model, card, encoding):
    folder = model("classify", card(model='labels = "names.txt"'))
    (folder / "names.txt").write_text("blue\n green \nred\n\n", encoding)

    assert read_card(folder / "model.toml").labels == ("blue", "green", "red")


def test_a_label_is_a_line_without_the_byte_order_mark(tmp_path):
    file = tmp_path / "names.txt"
    file.write_bytes("\ufeffblue\r\nsea\u2028green\x85\nre\x0cd".encode())

    assert read_labels(file) == ("blue", "sea\u2028green", "re\x0cd")


def test_a_label_map_of_ssd_has_the_names_of_its_numbers(tmp_path):
    file = tmp_path / "labelmap_voc.prototxt"
    shown = 'item { name: "none_of_the_above" label: 0 display_name: "background" }'
    file.write_text(f'{shown} item {{ name: "dog" label: 3 }} item {{ name: "cat" label: 1 }}')

    assert read_labels(file) == ("background", "cat", "2", "dog")


def test_a_label_map_has_no_more_labels_than_a_list(tmp_path):
    file = tmp_path / "labels.prototxt"
    file.write_text('item { name: "far" label: 2000000000 }')

    with expect_error(ConfigError, ErrorCode.LIMIT, mentions="2000000001 labels"):
        read_labels(file)


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
    ("changes", "fault"),
    [
        ({"task": "clasify"}, {"field": "task", "mentions": ["[model]", "'classify'"]}),
        ({"model": 'lables = "x"'}, {"field": "lables", "mentions": ["[model]", "'labels'"]}),
        ({"rest": "[preproces]"}, {"field": "preproces", "mentions": "'preprocess'"}),
        ({"preprocess": 'channels = "yuv"'}, {"field": "channels", "mentions": '"bgr", "rgb"'}),
        ({"preprocess": "mean = [1, 2]"}, {"field": "mean", "mentions": ["1 or 3", "[1, 2]"]}),
        ({"preprocess": "mean = [nan, 0, 0]"}, {"field": "mean", "mentions": "1 or 3"}),
        ({"preprocess": "scale = true"}, {"field": "scale", "mentions": ["1 or 3", "True"]}),
        ({"preprocess": "size = 100000"}, {"field": "size", "mentions": "16384"}),
        ({"preprocess": "size = [1, 2, 3]"}, {"field": "size", "mentions": "[1, 2, 3]"}),
        ({"preprocess": 'resize = "short side"'}, {"mentions": ['"short side"', "size"]}),
        ({"preprocess": 'resize = "none"\nsize = 4'}, {"mentions": ['"none"', "size"]}),
        ({"model": "batch = -1"}, {"field": "batch", "mentions": "-1"}),
        ({"model": "input = 3"}, {"field": "input", "mentions": "3"}),
        ({"model": "output = [1]"}, {"field": "output", "mentions": "[1]"}),
        ({"rest": "[classify]\nsoftmax = 1"}, {"field": "softmax", "mentions": "1"}),
        ({"rest": "[detect]\nthreshold = 2"}, {"field": "threshold", "mentions": "0 to 1"}),
        ({"rest": '[detect]\nboxes = "a"'}, {"mentions": "[detect.anchors]"}),
        (
            {"rest": '[detect]\nboxes="a"\nscores="b"\n[detect.anchors]\nsizes=[[1]]\nsteps=[1,2]'},
            {"mentions": ["sizes", "steps 2"]},
        ),
        ({"rest": "[detect]\nanchors = 3"}, {"field": "anchors", "mentions": "3"}),
        ({"rest": "= 3"}, {"code": ErrorCode.UNREADABLE}),
    ],
)
def test_what_a_card_cannot_say_is_refused(model, card, changes, fault):
    folder = model("classify", card(**changes))

    with expect_error(ConfigError, place=str(folder / "model.toml"), **fault):
        read_card(folder / "model.toml")


@pytest.mark.parametrize(
    ("preprocess", "rest", "mentions"),
    [
        ("size = 8\ncrop = 4", "", "crop"),
        ('channels = "l"', '[image]\nchannels = "bgr"', ['"bgr"', '"l"']),
        ('channels = "y"', '[image]\nchannels = "ab"', ['"ab"', '"y"']),
        ("", '[image]\nchannels = "y"', ['"y"', '"bgr"']),
        ("", "[image]\nscale = 0", "scale"),
        ("scale = 0", "", "scale"),
        ("", "[image]\nmean = [1, 2]", "mean"),
        ('mean = "net.caffemodel"', "", "mean"),
        ('resize = "factor"', "", '"factor"'),
        ('resize = "factor"\nsize = 17', "", "16"),
        ('resize = "factor"\nsize = [2, 2]', "", '"factor"'),
    ],
)
def test_what_a_card_cannot_say_of_images_is_refused(model, card, preprocess, rest, mentions):
    folder = model("features", card("image", preprocess=preprocess, rest=rest))

    with expect_error(ConfigError, ErrorCode.INVALID, mentions=mentions):
        read_card(folder / "model.toml")


@pytest.mark.parametrize(
    ("preprocess", "rest", "expected"),
    [
        ("mean = 3\nscale = 0.5", "", ImageOutput("bgr", (3,), (0.5,))),
        ("mean = 3", '[image]\nchannels = "rgb"', ImageOutput("rgb")),
        ('channels = "l"\nmean = 50', "", ImageOutput("ab")),
        ('channels = "y"\nscale = 2', "[image]\nmean = 7", ImageOutput("y", (7,), (2,))),
    ],
)
def test_output_images_are_as_the_input_if_nothing_else_is_said(
    model, card, preprocess, rest, expected
):
    folder = model("features", card("image", preprocess=preprocess, rest=rest))

    read = read_card(folder / "model.toml")
    (folder / "again.toml").write_text(format_card(read, folder))

    assert read.image == expected
    assert read_card(folder / "again.toml") == read


def test_a_card_without_channels_is_refused(model):
    folder = model("classify", '[model]\ntask = "classify"\nnet = "net.prototxt"\n')

    with expect_error(ConfigError, ErrorCode.MISSING, field="channels", mentions="[preprocess]"):
        read_card(folder / "model.toml")


@pytest.mark.parametrize(
    "name",
    [
        "../secret.txt", "/etc/hostname", "sub/../../secret.txt",
        pytest.param("link", marks=needs("links")),
    ],
)  # fmt: skip
def test_files_outside_of_the_folder_are_refused(model, card, name, tmp_path):
    (tmp_path / "secret.txt").write_text("secret\n")
    folder = model("classify", card(model=f'labels = "{name}"'))
    (folder / "sub").mkdir()
    if name == "link":
        (folder / "link").symlink_to(tmp_path / "secret.txt")

    with expect_error(ConfigError, ErrorCode.UNTRUSTED, file=name):
        read_card(folder / "model.toml")


@pytest.mark.parametrize("name", ["absent.txt", "a\\u0000b"])
def test_files_that_are_not_there_are_refused(model, card, name):
    folder = model("classify", card(model=f'labels = "{name}"'))

    with pytest.raises(ConfigError) as caught:
        read_card(folder / "model.toml")
    assert caught.value.code in {ErrorCode.NOT_FOUND, ErrorCode.INVALID}


@needs("links")
def test_a_link_within_the_folder_is_followed(model, card):
    folder = model("classify", card(model='labels = "link"'))
    (folder / "names.txt").write_text("a\nb\nc\n")
    (folder / "link").symlink_to(folder / "names.txt")

    assert read_card(folder / "model.toml").labels == ("a", "b", "c")


def test_a_card_of_a_megabyte_is_refused(model, card):
    folder = model("classify", card(rest="#" * (1 << 20)))

    with expect_error(ConfigError, ErrorCode.LIMIT, mentions="1048576"):
        read_card(folder / "model.toml")


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
IMAGE = ("channels", "mean", "scale")
TABLES = {
    "model": ("net", "weights", "task", "labels", "input", "output", "batch", "name", "source"),
    "preprocess": ("channels", "size", "resize", "crop", "mean", "scale"),
    "classify": ("softmax",),
    "detect": ("threshold", "boxes", "scores", "overlap", "background", "anchors"),
    "image": IMAGE,
}


@given(data=st.data())
def test_odd_values_are_refused_and_nothing_worse(data):
    tables = {
        "model": {"task": data.draw(st.sampled_from(["detect", "image"]))},
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
        card_from_table(Table(tables, "card"), Path("/nowhere"), FileOverrides())


def test_the_guide_names_every_key():
    text = (Path(__file__).parents[3] / "docs/run.md").read_text()

    for key in (*chain(*TABLES.values()), "licence", "sizes", "steps", "variance"):
        assert f"`{key}`" in text or f".{key}]`" in text


def test_the_cards_in_the_guide_can_be_read():
    text = (Path(__file__).parents[3] / "docs/run.md").read_text()
    shown = [tomllib.loads(one) for one in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)]
    for values in shown:
        del values["model"]["net"], values["model"]["weights"]

    tables = [Table(one, "card") for one in shown]
    cards = [card_from_table(one, Path("/nowhere"), FileOverrides()) for one in tables]

    assert [one.preprocess.resize for one in cards] == ["short side", "none"]
    assert cards[1].image.channels == "y"


def test_a_card_needs_a_net(model, card):
    folder = model("classify", card().replace('net = "net.prototxt"', ""))

    with expect_error(ConfigError, ErrorCode.MISSING, field="net"):
        read_card(folder / "model.toml")

"""Published cards, and how weights are recognised."""

import hashlib
import shutil

import numpy as np
import pytest
from expect_error import expect_error

import demitasse as dm
import demitasse.inference.cards.published as published_module
from demitasse.errors import ConfigError, ErrorCode, WeightsError
from demitasse.inference.cards import find_card
from demitasse.inference.cards.card_file import FileOverrides
from demitasse.inference.cards.published import (
    content_hash,
    file_hashes,
    published_card,
    recognize,
    similar_cards,
)
from demitasse.net import Net

PARAM = 'inner_product_param { num_output: 3 weight_filler { type: "xavier" } }'

KEYS = [one.key for one in published_module.published_cards()]


@pytest.fixture
def known(model, card, monkeypatch):
    """A folder with a model whose weights are among the published ones."""
    folder = model("classify", card())
    (folder / "model.toml").unlink()
    net = folder / "net.prototxt"
    text = net.read_text().replace('"means"', '"ip"').replace("Pooling", "InnerProduct")
    text = text.replace("pooling_param { pool: AVE global_pooling: true }", PARAM)
    net.write_text(f'name: "Ours"\n{text}')
    Net(net, "TEST", device="numpy", seed=1).save(folder / "net.caffemodel")
    weights = folder / "net.caffemodel"
    zoo = folder.parent / "zoo"
    zoo.mkdir()
    shutil.copy(published_module.ZOO / "vgg16.toml", zoo / "vgg16.toml")
    marks = f'contents = ["{content_hash(weights)}"]\nnets = ["OURS", "Other"]\n'
    (zoo / "ours.toml").write_text(
        '[model]\nname = "Ours"\ntask = "classify"\nlabels = "names.txt"\n'
        '[preprocess]\nchannels = "rgb"\nsize = 4\nmean = 5\n'
        f"[recognise]\n{marks}"
    )
    monkeypatch.setattr(published_module, "ZOO", zoo)
    published_module.published_cards.cache_clear()
    yield folder
    published_module.published_cards.cache_clear()


@pytest.mark.parametrize("key", KEYS)
def test_published_cards_say_what_they_can_say(key, tmp_path):
    one = published_card(key)
    (tmp_path / "ResNet_mean.binaryproto").touch()  # comes with those models

    card = one.card(FileOverrides(weights=[tmp_path / "w.caffemodel"]))

    assert card.name == one.name
    assert card.source.startswith("http")
    assert card.licence
    assert card.net is None


def test_models_of_imagenet_come_with_names_of_classes(tmp_path):
    for key in ("caffenet", "squeezenet1.1", "resnet50"):
        (tmp_path / "ResNet_mean.binaryproto").touch()
        card = published_card(key).card(FileOverrides(weights=[tmp_path / "w.caffemodel"]))

        assert len(card.labels) == len(set(card.labels)) == 1000
        assert [card.labels[i] for i in (0, 278, 281, 999)] == [
            "tench", "kit fox", "tabby", "toilet tissue",
        ]  # fmt: skip


def test_a_file_beside_the_weights_comes_before_ours(tmp_path):
    (tmp_path / "synset_words.txt").write_text("n01 a\nn02 b\n")

    card = published_card("caffenet").card(FileOverrides(weights=[tmp_path / "w.caffemodel"]))

    assert card.labels == ("n01 a", "n02 b")


@pytest.mark.parametrize("key", KEYS)
def test_digests_are_whole(key):
    one = published_card(key)

    assert one.recognisable or one.nets
    assert all(len(digest) in {40, 64} for digest in one.files)
    assert all(len(digest) == 64 for digest in one.contents)
    assert all(set(digest) <= set("0123456789abcdef") for digest in one.files | one.contents)


def test_no_two_cards_claim_one_file():
    digests = [d for one in published_module.published_cards() for d in (*one.files, *one.contents)]

    assert len(digests) == len(set(digests))


def test_digests_of_a_file_are_those_of_its_bytes(tmp_path):
    (tmp_path / "w").write_bytes(b"weights" * 400_000)
    content = (tmp_path / "w").read_bytes()

    old, new = file_hashes(tmp_path / "w")

    assert old == hashlib.sha1(content, usedforsecurity=False).hexdigest()
    assert new == hashlib.sha256(content).hexdigest()


def test_a_file_that_is_not_there_has_no_digest(tmp_path):
    with expect_error(WeightsError, ErrorCode.UNREADABLE, place=str(tmp_path / "w")):
        file_hashes(tmp_path / "w")


@pytest.mark.parametrize("name", ["again.caffemodel", "again.npz", "again.safetensors"])
def test_weights_that_were_saved_anew_are_recognised(known, name):
    net = Net(known / "net.prototxt", "TEST", weights=known / "net.caffemodel", device="numpy")
    net.save(known / name)

    found = recognize([known / name])

    assert found is not None
    assert found.key == "ours"


def test_other_weights_are_not(known):
    Net(known / "net.prototxt", "TEST", device="numpy", seed=2).save(known / "net.caffemodel")

    assert recognize([known / "net.caffemodel"]) is None


def test_recognised_weights_need_no_card(known, caplog):
    weights, net = known / "net.caffemodel", known / "net.prototxt"

    predictor = dm.load_model(net, weights)

    how = predictor.card.preprocess
    assert (how.channels, how.size, how.mean) == ("rgb", (4, 4), (5.0,))
    assert predictor.card.labels == ()
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "names.txt" in record.getMessage()


def test_files_beside_recognised_weights_are_found(known):
    (known / "names.txt").write_text("a\nb\nc\n")

    card = find_card(known / "net.caffemodel")

    assert card.net == known / "net.prototxt"
    assert card.labels == ("a", "b", "c")


def test_a_name_is_a_suggestion_and_no_more(known):
    net = known / "net.prototxt"
    Net(net, "TEST", device="numpy", seed=2).save(known / "net.caffemodel")

    assert [one.key for one in similar_cards(net)] == ["ours"]
    with expect_error(ConfigError, ErrorCode.UNKNOWN, field="weights", mentions="--card ours"):
        find_card(net, known / "net.caffemodel")


def test_a_suggestion_needs_the_same_size(known):
    net = known / "net.prototxt"
    net.write_text(net.read_text().replace("dim: 4", "dim: 8"))

    assert similar_cards(net) == []


def test_a_suggestion_may_be_taken(known):
    net = known / "net.prototxt"
    Net(net, "TEST", device="numpy", seed=2).save(known / "net.caffemodel")

    card = find_card(net, known / "net.caffemodel", card="ours")

    assert card.name == "Ours"


def test_labels_and_means_may_be_given(known, tmp_path):
    (tmp_path / "elsewhere.txt").write_text("x\ny\nz\n")
    np.save(tmp_path / "mean.npy", np.zeros(3))

    card = find_card(
        known / "net.caffemodel",
        labels=tmp_path / "elsewhere.txt",
        mean=tmp_path / "mean.npy",
    )

    assert card.labels == ("x", "y", "z")
    assert card.preprocess.mean == tmp_path / "mean.npy"


@pytest.mark.parametrize(
    ("source", "options", "code", "mentions"),
    [
        ("net.prototxt", {}, ErrorCode.MISSING, "--weights"),
        ("cat.JPG", {}, ErrorCode.INVALID, "are two arguments swapped?"),
        (".", {}, ErrorCode.NOT_FOUND, "model.toml"),
        (".", {"card": "ours"}, ErrorCode.CONFLICT, "'ours'"),
        ("net.caffemodel", {"weights": "net.caffemodel"}, ErrorCode.CONFLICT, "net.caffemodel"),
        (
            "net.prototxt",
            {"weights": "net.caffemodel", "card": "vgg61"},
            ErrorCode.UNKNOWN,
            ["'vgg61'", "'vgg16'"],
        ),
    ],
)
def test_what_names_no_model_is_refused(known, source, options, code, mentions):
    if "weights" in options:
        options = options | {"weights": known / options["weights"]}
    (known / "cat.JPG").write_bytes(b"an image")

    with expect_error(ConfigError, code, mentions=mentions):
        find_card(known / source, **options)


def test_weights_need_their_net_beside_them(known):
    (known / "net.prototxt").rename(known / "other.prototxt")

    with expect_error(ConfigError, ErrorCode.NOT_FOUND, mentions="deploy.prototxt, net.prototxt"):
        find_card(known / "net.caffemodel")

"""Published cards, and how weights are recognised."""

import hashlib
import shutil

import numpy as np
import pytest

import demitasse as dm
from demitasse.errors import ConfigError, WeightsError
from demitasse.inference.cards import find_card, published
from demitasse.inference.cards.digests import contents_digest, file_digests
from demitasse.inference.cards.published import published_named, recognised, similar
from demitasse.inference.cards.reading import Given
from demitasse.net import Net

PARAM = 'inner_product_param { num_output: 3 weight_filler { type: "xavier" } }'

KEYS = [one.key for one in published.published()]


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
    shutil.copy(published.ZOO / "vgg16.toml", zoo / "vgg16.toml")
    marks = f'contents = ["{contents_digest(weights)}"]\nnets = ["OURS", "Other"]\n'
    (zoo / "ours.toml").write_text(
        '[model]\nname = "Ours"\ntask = "classify"\nlabels = "names.txt"\n'
        '[preprocess]\nchannels = "rgb"\nsize = 4\nmean = 5\n'
        f"[recognise]\n{marks}"
    )
    monkeypatch.setattr(published, "ZOO", zoo)
    published.published.cache_clear()
    yield folder
    published.published.cache_clear()


@pytest.mark.parametrize("key", KEYS)
def test_published_cards_say_what_they_can_say(key, tmp_path):
    one = published_named(key)
    (tmp_path / "ResNet_mean.binaryproto").touch()  # comes with those models

    card = one.card(Given(weights=[tmp_path / "w.caffemodel"]))

    assert card.name == one.name
    assert card.source.startswith("http")
    assert card.licence
    assert card.net is None


@pytest.mark.parametrize("key", KEYS)
def test_digests_are_whole(key):
    one = published_named(key)

    assert one.recognisable or one.nets
    assert all(len(digest) in {40, 64} for digest in one.files)
    assert all(len(digest) == 64 for digest in one.contents)
    assert all(set(digest) <= set("0123456789abcdef") for digest in one.files | one.contents)


def test_no_two_cards_claim_one_file():
    digests = [d for one in published.published() for d in (*one.files, *one.contents)]

    assert len(digests) == len(set(digests))


def test_digests_of_a_file_are_those_of_its_bytes(tmp_path):
    (tmp_path / "w").write_bytes(b"weights" * 400_000)
    content = (tmp_path / "w").read_bytes()

    old, new = file_digests(tmp_path / "w")

    assert old == hashlib.sha1(content, usedforsecurity=False).hexdigest()
    assert new == hashlib.sha256(content).hexdigest()


def test_a_file_that_is_not_there_has_no_digest(tmp_path):
    with pytest.raises(WeightsError, match=r"w: No such file"):
        file_digests(tmp_path / "w")


@pytest.mark.parametrize("name", ["again.caffemodel", "again.npz", "again.safetensors"])
def test_weights_that_were_saved_anew_are_recognised(known, name):
    net = Net(known / "net.prototxt", "TEST", weights=known / "net.caffemodel", device="numpy")
    net.save(known / name)

    found = recognised([known / name])

    assert found is not None
    assert found.key == "ours"


def test_other_weights_are_not(known):
    Net(known / "net.prototxt", "TEST", device="numpy", seed=2).save(known / "net.caffemodel")

    assert recognised([known / "net.caffemodel"]) is None


def test_recognised_weights_need_no_card(known, caplog):
    weights, net = known / "net.caffemodel", known / "net.prototxt"

    predictor = dm.load_model(net, weights)

    how = predictor.card.preprocess
    assert (how.channels, how.size, how.mean) == ("rgb", (4, 4), (5.0,))
    assert predictor.card.labels == ()
    assert "no file names.txt" in caplog.text


def test_files_beside_recognised_weights_are_found(known):
    (known / "names.txt").write_text("a\nb\nc\n")

    card = find_card(known / "net.caffemodel")

    assert card.net == known / "net.prototxt"
    assert card.labels == ("a", "b", "c")


def test_a_name_is_a_suggestion_and_no_more(known):
    net = known / "net.prototxt"
    Net(net, "TEST", device="numpy", seed=2).save(known / "net.caffemodel")

    assert [one.key for one in similar(net)] == ["ours"]
    with pytest.raises(ConfigError, match=r"called like .*'ours': .* add --card ours\. Otherwise"):
        find_card(net, known / "net.caffemodel")


def test_a_suggestion_needs_the_same_size(known):
    net = known / "net.prototxt"
    net.write_text(net.read_text().replace("dim: 4", "dim: 8"))

    assert similar(net) == []


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
    ("source", "options", "message"),
    [
        ("net.prototxt", {}, "is a net without weights"),
        (".", {}, r"holds no card model\.toml"),
        (".", {"card": "ours"}, "has a card of its own"),
        ("net.caffemodel", {"weights": "net.caffemodel"}, "are both weights"),
        (
            "net.prototxt",
            {"weights": "net.caffemodel", "card": "vgg61"},
            "there is no published card 'vgg61'; did you mean 'vgg16'",
        ),
    ],
)
def test_what_names_no_model_is_refused(known, source, options, message):
    if "weights" in options:
        options = options | {"weights": known / options["weights"]}

    with pytest.raises(ConfigError, match=message):
        find_card(known / source, **options)


def test_weights_need_their_net_beside_them(known):
    (known / "net.prototxt").rename(known / "other.prototxt")

    with pytest.raises(ConfigError, match=r"none of deploy\.prototxt, net\.prototxt"):
        find_card(known / "net.caffemodel")

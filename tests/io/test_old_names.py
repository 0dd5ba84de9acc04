"""Old public names of io work, and warn once."""

import importlib

import pytest
from expect_error import expect_warning

import demitasse
from demitasse.core import deprecated
from demitasse.io.data.sources import source
from demitasse.io.proto import NetParameter, parse_text


@pytest.fixture(autouse=True)
def unwarned(monkeypatch):
    monkeypatch.setattr(deprecated, "_warned", set())


def test_unknown_fields_are_ignored_by_the_old_argument():
    with expect_warning(DeprecationWarning, mentions=["lenient", "ignore_unknown_fields"]):
        assert parse_text("foo: 1", NetParameter, lenient=True) == NetParameter()


def test_the_old_value_of_on_mismatch_raises():
    text = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 } } }'
    net = demitasse.Net(parse_text(text, NetParameter), "TEST", device="numpy")

    with expect_warning(DeprecationWarning, mentions=["'error'", "'raise'"]):
        assert net.load(NetParameter(), on_mismatch="error").loaded == []


@pytest.mark.parametrize(("old", "new"), [("Reading", "ReaderConfig"), ("ALONE", "UNSHARDED")])
def test_sources_have_their_old_names(old, new):
    with expect_warning(DeprecationWarning, mentions=[old, new]):
        assert getattr(source, old) is getattr(source, new)


def test_a_shard_takes_and_gives_ranks():
    with expect_warning(DeprecationWarning, mentions="world_size"):
        shard = source.Shard(1, ranks=3)
    with expect_warning(DeprecationWarning, mentions="Shard.ranks"):
        assert shard.ranks == 3


def test_strings_are_escaped_by_the_old_function():
    with expect_warning(DeprecationWarning, mentions=["mend_strings", "escape_invalid_utf8"]):
        assert demitasse.proto.mend_strings is demitasse.proto.escape_invalid_utf8


@pytest.mark.parametrize(
    "name",
    [
        "demitasse.data.images.decode",
        "demitasse.data.sources.label_images",
        "demitasse.data.transform.augment.augmenter",
        "demitasse.weights.pairing",
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_modules_have_their_old_addresses(name):
    assert importlib.import_module(name).__name__.startswith("demitasse.io.")

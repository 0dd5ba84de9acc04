"""Near names."""

import difflib

from demitasse.core.suggest import nearest, suggestion


def test_capitals_make_no_difference():
    assert nearest("relu", ["ReLU", "PReLU"]) == ["ReLU"]
    assert suggestion("Convolutoin", ["Convolution"]) == "; did you mean 'Convolution'?"


def test_a_text_that_is_no_name_is_not_compared(monkeypatch):
    def compare(*args):
        raise AssertionError("comparing takes as many steps as the texts have letters, and more")

    monkeypatch.setattr(difflib, "get_close_matches", compare)

    assert suggestion("x" * 201, ["ReLU"]) == ""

"""What the shell offers."""

import pytest
from click.shell_completion import ShellComplete

from demitasse.cli.root import cli


def offered(words: str, incomplete: str) -> list[tuple[str, str]]:
    shell = ShellComplete(cli, {}, "demitasse", "_DEMITASSE_COMPLETE")
    return [(one.type, one.value) for one in shell.get_completions(words.split(), incomplete)]


def test_devices_that_are_here():
    assert ("plain", "cpu") in offered("summary --device", "")
    assert ("plain", "cpu,numpy") in offered("consistency --devices", "cpu,nu")


@pytest.mark.parametrize("words", ["summary", "train --solver", "train --weights", "lint"])
def test_files_are_left_to_the_shell(words):
    assert [kind for kind, _ in offered(words, "")] == ["file"]


def test_verbs_codes_and_loggers():
    assert offered("", "expl") == [("plain", "explain")]
    assert offered("explain", "zero") == [("plain", "zero-weights")]
    assert offered("train --logger", "j") == [("plain", "jsonl:")]

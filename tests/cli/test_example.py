"""``demitasse example digits``: the run, and the commands that it prints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from needs import needs

from demitasse.core.text import command_line

pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
pytest.importorskip("PIL", reason="decoding images needs Pillow")

PROGRAM = Path(sys.executable).with_name("demitasse")


def shell(command: str) -> subprocess.CompletedProcess:
    """Run a line in a shell whose PATH has no environment of Python."""
    environment = os.environ | {"PATH": os.defpath}
    return subprocess.run(
        command, shell=True, capture_output=True, text=True, env=environment, check=False
    )


@needs("a POSIX shell")
@pytest.mark.skipif(not PROGRAM.exists(), reason="the program is not installed as a script")
def test_the_printed_commands_run_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = shell(f"'{PROGRAM}' example digits --out 'my digits'")
    assert example.returncode == 0, example.stderr
    commands = [line.strip() for line in example.stdout.partition("Next:")[2].strip().splitlines()]

    assert [command.split()[1] for command in commands] == ["run", "test", "time", "consistency"]
    for command in commands:
        done = shell(command.replace("--iterations 20", "--iterations 2"))
        assert done.returncode == 0, done.stderr
    assert example.stderr.count("Iteration 600, Testing net (#0)") == 1


@needs("a POSIX shell")
@pytest.mark.skipif(not PROGRAM.exists(), reason="the program is not installed as a script")
def test_the_commands_of_the_readme_run_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    readme = Path(__file__).resolve().parents[2] / "README.md"
    lines = readme.read_text(encoding="utf-8").splitlines()
    commands = [line.rpartition(".venv/bin/demitasse ")[2] for line in lines
                if ".venv/bin/demitasse " in line and not line.startswith("The ")]  # fmt: skip

    assert [command.split()[0] for command in commands] == ["example", "test"]
    for command in commands:
        done = shell(f"'{PROGRAM}' {command}")
        assert done.returncode == 0, done.stderr


def test_words_of_a_command_are_quoted_for_a_shell():
    line = command_line("run", "a b", "it's", "$x")

    wanted = {"nt": """ run "a b" it's $x""", "posix": """ run 'a b' 'it'"'"'s' '$x'"""}
    assert line.endswith(wanted[os.name])

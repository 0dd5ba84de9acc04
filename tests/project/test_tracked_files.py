"""What the repository may hold."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout, so there is no list of tracked files")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    return [path for name in listed.decode().split("\0") if name and (path := ROOT / name).exists()]


def test_no_file_names_a_folder_of_one_machine(tracked):
    one_machine = re.compile(rb"(?<![\w.~-])/(?:home|root|work|farm|mnt|Users)/")

    found = [p for p in tracked if one_machine.search(p.read_bytes())]

    assert found == []


def test_git_for_windows_leaves_line_ends_alone(tracked, tmp_path):
    files = [path.relative_to(ROOT).as_posix() for path in tracked if path.suffix == ".prototxt"]
    command = ["git", "-c", "core.autocrlf=true", "checkout-index", f"--prefix={tmp_path}/", "--"]

    subprocess.run([*command, *files], cwd=ROOT, check=True)

    assert not [name for name in files if b"\r\n" in (tmp_path / name).read_bytes()]
    assert files


def test_recorded_cases_are_complete():
    goldens = ROOT / "tests" / "goldens"

    layers = {p.stem for p in goldens.glob("layers/*.npz")}
    rules = {p.stem for p in goldens.glob("rules/*.json")}

    assert layers == {p.stem for p in goldens.glob("layers/*.prototxt")}
    assert rules == {p.stem for p in goldens.glob("rules/*.prototxt")}
    assert layers
    assert rules

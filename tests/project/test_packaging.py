"""What packages are made by says what pyproject.toml says."""

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from demitasse import __version__
from demitasse.cli.root import cli

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RECIPE = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8")

# What a distribution is called on conda-forge, where its name there is another.
CONDA = {"lmdb": "python-lmdb"}


def floors_of_the_package():
    for requirement in PROJECT["dependencies"]:
        name, floor = re.match(r"([\w-]+)>=([\d.]+)", requirement).groups()
        yield CONDA.get(name, name), floor


@pytest.mark.parametrize(("name", "floor"), list(floors_of_the_package()))
def test_conda_s_recipe_asks_for_what_the_package_needs(name, floor):
    found = re.search(rf"^    - {re.escape(name)} >=([\d.]+)$", RECIPE, re.MULTILINE)

    assert found, name
    assert found[1] == floor


LIBRARIES = sorted((ROOT / "packages").glob("demitasse-*"))


@pytest.mark.parametrize("folder", LIBRARIES, ids=lambda folder: folder.name)
def test_a_backend_of_a_library_is_below_150_lines_without_lowerings(folder):
    files = (f for f in folder.glob("demitasse_*/*.py") if f.name != "lowerings.py")
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)

    assert 0 < lines < 150


def test_the_version_is_the_same_everywhere():
    release = re.match(r"[\d.]*\d", __version__.removesuffix(".dev0"))[0]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")

    assert f"\n  version: {release}\n" in RECIPE
    assert f"\nversion: {release}\n" in citation
    assert f'python_min: "{PROJECT["requires-python"].removeprefix(">=")}"' in RECIPE


def test_the_first_page_lists_every_extra():
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")

    names = [
        re.findall(r"`(\w+)`", line.split("|")[1]) for line in page.splitlines() if "|" in line
    ]

    assert set(PROJECT["optional-dependencies"]) <= set(chain(*names))


IMAGES = [*sorted(ROOT.glob("packaging/docker/*.Dockerfile")), ROOT / "examples/cluster/Dockerfile"]


def name_of(image):
    return f"{image.parent.name}-{image.stem}"


@pytest.mark.parametrize("image", IMAGES, ids=name_of)
def test_images_install_extras_that_there_are(image):
    [extras] = re.findall(r"\.\[([\w,]+)\]", image.read_text(encoding="utf-8"))

    assert {"serve"} <= set(extras.split(",")) <= set(PROJECT["optional-dependencies"])


def test_the_page_on_docker_builds_and_runs_what_there_is():
    text = (ROOT / "docs" / "docker.md").read_text(encoding="utf-8")
    built = dict(re.findall(r"^docker build -f (\S+) -t (\S+) \.$", text, re.MULTILINE))

    runs = re.findall(r"^docker run .* (demitasse(?::\w+)?) (.*)$", text, re.MULTILINE)

    assert {ROOT / file for file in built} == set(IMAGES[:-1])
    assert {image for image, _ in runs} == set(built.values())
    assert [arguments.split()[0] for _, arguments in runs] == [
        "summary", "run", "serve", "train", "serve",
    ]  # fmt: skip
    for _, arguments in runs:
        verb, *rest = arguments.split()
        cli.get_command(None, verb).make_context(verb, rest, parent=cli.make_context("d", [verb]))
    for file in built:
        image = (ROOT / file).read_text(encoding="utf-8")
        assert "EXPOSE 8000" in image
        assert {"serve", "onnx"} <= set(re.search(r"\.\[([\w,]+)\]", image)[1].split(","))

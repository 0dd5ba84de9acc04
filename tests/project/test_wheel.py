"""What is packed, and that the packed thing works without the checkout."""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

RECTIFY = """
input: "data"
input_shape { dim: 1 dim: 2 }
layer { name: "relu" type: "ReLU" bottom: "data" top: "y" }
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    pytest.importorskip("build", reason="packages are built by `build`: pip install --group build")
    folder = tmp_path_factory.mktemp("built")
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    [path] = built.glob("*.whl")
    return path


def test_wheel_is_pure_python(wheel):
    assert wheel.name.endswith("-py3-none-any.whl")


def test_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    listed = subprocess.run(
        ["git", "ls-files", "demitasse"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()

    packed = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}

    assert packed == {name for name in listed if (ROOT / name).exists()}


@pytest.mark.parametrize(
    "name",
    [
        "demitasse/py.typed",
        "demitasse/io/proto/caffe.proto",
        "demitasse/io/proto/caffe.binpb",
        "demitasse/io/proto/caffe_pb2.pyi",
        "demitasse/examples/digits/train_test.prototxt",
    ],
)
def test_wheel_holds_what_is_not_python(wheel, name):
    assert name in zipfile.ZipFile(wheel).namelist()


def test_wheel_runs_without_the_checkout(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    scripts = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    subprocess.run([scripts / "python", "-m", "pip", "install", "--quiet", wheel], check=True)
    (tmp_path / "net.prototxt").write_text(RECTIFY)
    code = """
import demitasse
net = demitasse.Net("net.prototxt", "TEST")
print(net.predict({"data": [[-1, 2]]})["y"])
"""

    done = subprocess.run(
        [scripts / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    version = subprocess.run([scripts / "demitasse", "--version"], capture_output=True, check=True)

    assert done.stdout.split() == ["[[0.", "2.]]"]
    assert b"0.1" in version.stdout


def test_the_package_caffe_holds_the_name_and_nothing_else(tmp_path):
    pytest.importorskip("build", reason="packages are built by `build`: pip install --group build")
    folder = ROOT / "compat" / "caffe"

    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, folder], check=True
    )

    [wheel] = tmp_path.glob("demitasse_caffe-*.whl")
    packed = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    assert packed == {"caffe/__init__.py", "demitasse_caffe.py", "demitasse_caffe.pth"}


def test_sdist_holds_sources_and_tests(built):
    [path] = built.glob("*.tar.gz")

    with tarfile.open(path) as file:
        names = {name.partition("/")[2] for name in file.getnames()}

    assert {"pyproject.toml", "LICENSE", "tests/conftest.py", "demitasse/py.typed"} <= names

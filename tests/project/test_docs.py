"""The Python in the documentation runs, and its tables are complete."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from mpirun import MPIRUN

from demitasse import pycaffe
from demitasse.backends.kernels import language
from demitasse.backends.numpy.steps import elementwise as activation
from demitasse.cli.root import cli
from demitasse.compat.pycaffe import _caffe
from demitasse.core.config import TABLE
from demitasse.core.device import set_device
from demitasse.core.host import affinity_cores

ROOT = Path(__file__).resolve().parents[2]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def python_blocks(name: str) -> str:
    """All Python blocks of a text, one after the other, at their lines."""
    lines, inside = [], False
    for line in read(name).splitlines():
        fence = line.startswith("```")
        inside = line == "```python" if fence else inside
        lines.append("" if fence or not inside else line)
    return "\n".join(lines)


def run(code: str, name: str, **names: object) -> dict[str, object]:
    try:
        exec(compile(code, name, "exec"), names)
    finally:
        set_device(None)  # a text may choose one for the process
    return names


@pytest.fixture
def beside_digits(digits_run, tmp_path, monkeypatch):
    """Work in a folder that holds the finished example as ``digits``."""
    folder = tmp_path / "digits"
    shutil.copytree(digits_run.folder, folder)
    solver = folder / "solver.prototxt"  # whose snapshots are to land here, not where it was made
    solver.write_text(solver.read_text().replace(str(digits_run.folder), "digits"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_getting_started_runs(beside_digits):
    names = run(python_blocks("docs/index.md"), "docs/index.md")

    assert names["probabilities"].shape == (5, 10)
    assert names["features"].shape == (5, 128)
    assert (beside_digits / "digits/mine_iter_100.caffemodel").exists()


@pytest.mark.usefixtures("beside_digits")
def test_a_notebook_is_followed(capsys):
    names = run(python_blocks("docs/notebooks.md"), "docs/notebooks.md")

    assert "conv1" in names["net"]._repr_html_()
    assert "norm of all gradients" in names["solver"]._repr_html_()
    assert len(names["speeds"]) == 1
    assert "conv1 " in capsys.readouterr().out


@pytest.mark.usefixtures("beside_digits")
def test_a_model_runs_on_an_image():
    names = run(python_blocks("docs/run.md"), "docs/run.md")

    [(digit, probability)] = names["answer"].top(1)
    assert digit == "1"
    assert probability > 0.5


@pytest.mark.usefixtures("beside_digits")
def test_many_inputs_run_in_parts():
    run(python_blocks("docs/predict.md"), "docs/predict.md")

    with np.load("all.npz") as joined:
        assert joined["prob"].shape == (10, 10)
    assert len(list(Path("parts").iterdir())) == 3


@pytest.mark.usefixtures("beside_digits")
def test_a_net_is_served():
    command = [sys.executable, "-m", "demitasse", "serve", "digits", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = re.search(r"http://\S+?:\d+", server.stdout.readline())[0]
            code = python_blocks("docs/serving.md").replace("http://127.0.0.1:8000", address)

            names = run(code, "docs/serving.md")
            [curl] = re.findall("^curl --data.*", read("docs/serving.md"), re.MULTILINE)
            if shutil.which("curl"):
                command = curl.replace("http://127.0.0.1:8000", address)
                command = command.replace("squeezenet", "digits").replace(
                    "photo.jpg", "digits/digit.png"
                )
                shown = subprocess.run(shlex.split(command), capture_output=True, check=True)
                [output] = json.loads(shown.stdout)["outputs"]
                assert json.loads(output["data"][0])["classes"]
        finally:
            server.terminate()

    assert names["output"]["shape"] == [1]
    assert names["answer"]["classes"][0]["label"] == "1"


@pytest.mark.skipif(MPIRUN is None, reason="mpirun is not there: pip install 'demitasse[mpi]'")
def test_processes_train_as_root_on_any_number_of_cores(beside_digits):
    pytest.importorskip("mpi4py")
    solver = beside_digits / "digits/solver.prototxt"
    solver.write_text(solver.read_text().replace("max_iter: 600", "max_iter: 20"))
    blocks = fenced_blocks("docs/parallel.md")
    first, second = [content for kind, content in blocks if kind == "bash"][:2]
    allowed = second.splitlines()[0]

    weights = []
    for block in (first.splitlines()[-1], second):
        line = re.sub("^mpirun ", f"{MPIRUN} ", block, flags=re.MULTILINE)
        line = line.replace(" demitasse ", f" {shlex.quote(sys.executable)} -m demitasse ")
        if affinity_cores() < 2:
            line = line.replace("-n 2", "--oversubscribe -n 2")
        subprocess.run(
            f"{allowed}\n{line}", shell=True, check=True, capture_output=True, timeout=300
        )
        weights.append(Path("digits/digits_iter_20.caffemodel").read_bytes())

    assert weights[0] == weights[1]


def test_the_way_from_opencv_runs(beside_digits):
    names = run(python_blocks("docs/from-opencv.md"), "docs/from-opencv.md")

    assert names["blob"].shape == (1, 1, 16, 16)
    assert names["probabilities"].shape == (1, 10)
    assert names["score"] == names["probabilities"].max()
    assert names["label"] == names["probabilities"].argmax()


def test_the_cookbook_is_followed(beside_digits, monkeypatch):
    monkeypatch.syspath_prepend(".")

    names = follow("docs/cookbook.md")

    assert len(names["losses"]) == 20
    assert names["probabilities"].argmax() == names["labels"][0]
    assert (names["found"] == names["labels"]).mean() > 0.95
    assert names["features"].shape == (50, 128)
    assert Path("program.svg").stat().st_size > 1000
    assert compile(Path("twice.py").read_text(), "twice.py", "exec")


def test_readme_tour_runs(beside_digits):
    for file in (beside_digits / "digits").iterdir():
        file.rename(beside_digits / file.name)
    Path("deploy.prototxt").rename("lenet.prototxt")
    Path("digits_iter_600.caffemodel").rename("lenet.caffemodel")
    code = python_blocks("README.md").replace("cuda:0", "strict:device1")

    names = run(code, "README.md", images=np.zeros((3, 1, 16, 16), np.float32))

    assert names["probabilities"].shape == (3, 10)
    assert len(list(beside_digits.glob("lenet_iter_100.*"))) == 2


def test_a_fast_operation_is_made_from_beginning_to_end(monkeypatch):
    monkeypatch.setattr(activation, "FUNCTIONS", dict(activation.FUNCTIONS))

    names = run(python_blocks("docs/development/fast-operation.md"), "fast-operation.md")

    assert isinstance(names["steps"][1], names["SigmoidStep"])


@pytest.mark.skipif(not language.status().ready, reason=str(language.status()))
def test_a_kernel_is_written_and_run():
    run(python_blocks("docs/development/kernel.md"), "kernel.md")


def test_a_slow_layer_is_looked_into(beside_digits, capsys):
    run(python_blocks("docs/development/slow-layer.md"), "slow-layer.md")

    assert "conv1" in capsys.readouterr().out


def test_a_wrong_result_is_looked_for(beside_digits):
    run(python_blocks("docs/development/wrong-result.md"), "wrong-result.md")


def test_the_python_interface_has_the_names_that_the_page_says():
    text = (ROOT / "docs/from-pycaffe.md").read_text(encoding="utf-8")
    [table] = re.findall(r"^## The names$(.*?)^##? ", text, re.MULTILINE | re.DOTALL)
    rows = [row.split("|")[1:3] for row in table.splitlines() if row.startswith("| ")][2:]

    named = {name for _, names in rows for name in re.findall(r"`(\w+)`", names)}
    modules = {name for name, _ in rows for name in re.findall(r"`caffe\.(\w+)", name)}

    assert all(hasattr(pycaffe, name) or hasattr(_caffe, name) for name in named)
    assert set(pycaffe.__all__) - {"__version__"} <= named | modules


def test_the_way_from_pytorch_runs(beside_digits):
    columns = fenced_blocks("docs/from-pytorch.md")
    ours = [code for kind, code in columns if kind == 'python title="Demitasse"']
    theirs = [code for kind, code in columns if kind == 'python title="PyTorch"']

    names = run("\n".join(ours), "docs/from-pytorch.md")

    assert len(ours) == len(theirs)
    assert all(compile(code, "docs/from-pytorch.md", "exec") for code in theirs)
    assert names["scores"].shape == (8, 10)
    assert names["norm"] > 0
    assert names["again"].iter == names["solver"].iter


def test_every_setting_is_documented():
    text = (ROOT / "docs/settings.md").read_text(encoding="utf-8")

    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \| [^|]+ \|$", text, re.MULTILINE)
    documented = {name: values for name, values in rows if name in TABLE}

    assert list(documented) == list(TABLE)
    for name, setting in TABLE.items():
        if setting.choices:
            assert documented[name] == ", ".join(f"`{choice}`" for choice in setting.choices)
        if setting.at_least is not None:
            assert documented[name] == f"at least {setting.at_least}"


def test_the_size_of_the_package_is_the_sum_of_its_parts():
    text = read("docs/index.md")
    [own] = re.findall(r"The package's own (\d+) MiB are:", text)
    [table] = re.findall(r"^\| part \| MiB \|\n(.*?)\n\n", text, re.MULTILINE | re.DOTALL)

    assert re.findall(r"^\| \| the package alone .* (\d+) \|$", text, re.MULTILINE) == [own]
    assert sum(map(int, re.findall(r" (\d+) \|$", table, re.MULTILINE))) == int(own)


def fenced_blocks(name: str) -> list[tuple[str, str]]:
    """The fenced blocks of a text in order: the rest of their first line, and their contents."""
    return re.findall(r"^```(\S[^\n]*)\n(.*?)^```$", read(name), re.DOTALL | re.MULTILINE)


def follow(name: str) -> dict[str, object]:
    """Do what a text says: run its Python and its commands, and write the files it shows."""
    names: dict[str, object] = {}
    for kind, content in fenced_blocks(name):
        if kind == "python":
            exec(compile(content, name, "exec"), names)
        elif kind == "bash":
            for line in content.splitlines():
                program, *arguments = line.split()
                assert program == "demitasse"
                result = CliRunner().invoke(cli, arguments)
                assert result.exit_code == 0, f"{line}\n{result.output}"
        elif found := re.search(r'title="(.+)"', kind):
            Path(found[1]).write_text(content)
    return names


def test_own_images_lead_to_a_net_that_knows_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    names = follow("docs/own-images.md")

    assert len(names["best"]) == 24
    assert names["right"] > 0.8
    assert names["batch"] == (16, 3, 32, 32)


def test_a_trained_net_is_fine_tuned(tmp_path, monkeypatch):
    pytest.importorskip("sklearn", reason="the example's digits come from scikit-learn")
    monkeypatch.chdir(tmp_path)

    names = follow("docs/fine-tuning.md")

    assert names["tuned"] > names["random"] + 0.1
    assert names["frozen"] > names["random"] + 0.1
    assert names["features"].shape == (297, 128)


def test_losses_of_ones_own_are_trained_with(tmp_path, monkeypatch):
    pytest.importorskip("sklearn", reason="the example's digits come from scikit-learn")
    monkeypatch.chdir(tmp_path)

    names = follow("docs/own-loss.md")

    line = pytest.approx((3, 1), abs=0.1)
    assert names["squared"] != line
    assert names["robust"] == line
    assert names["median"] == line
    assert names["error"] < 1e-3
    assert (names["slope"], names["height"]) == pytest.approx((3, 1), abs=0.5)
    assert names["saliency"].max() > 0
    assert 0 < names["largest_change"] < 0.5


def test_a_database_of_ones_own_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert follow("docs/data.md")["written"] == 100

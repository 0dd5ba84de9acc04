"""Every example runs as its README says, without a download, and reaches what it is to show."""

import json
import runpy
from pathlib import Path

import pytest

from demitasse.examples.data import SHAPES, digits, draw_shapes, scenes
from demitasse.examples.script import Arguments, train

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = sorted(path.parent.name for path in EXAMPLES.glob("*/run.py"))


def least(**figures):
    """Return a check that figures of these names are at least so large."""

    def check(found):
        assert {name: found[name] for name in figures if found[name] < figures[name]} == {}

    return check


def check_mnist(found):
    accuracies = {name: value for name, value in found.items() if name.endswith("accuracy")}
    errors = {name: value for name, value in found.items() if name.endswith("error")}
    assert (len(accuracies), len(errors)) == (8, 4)
    assert min(accuracies.values()) > 0.93, accuracies
    assert max(errors.values()) < 20, "half the squared error of 784 pixels; 28 before training"


def check_finetune(found):
    assert found["fine-tuned accuracy"] > max(0.85, found["accuracy from nothing"])


def check_features(found):
    assert found["agreement by features"] > found["agreement by pixels"] + 0.05


def check_surgery(found):
    assert found["largest difference"] < 1e-4
    assert found["accuracy on strips"] > 0.9


CHECKS = {
    "mnist": check_mnist,
    "cifar10": least(**{"quick accuracy": 0.8, "full accuracy": 0.85}),
    "siamese": least(**{"nearest is the same": 0.75}),
    "hdf5_classification": least(**{"logistic accuracy": 0.7, "nonlinear accuracy": 0.8}),
    "finetune": check_finetune,
    "net_surgery": check_surgery,
    "features": check_features,
    "ssd": least(**{"mean average precision": 0.9}),
    "fcn": least(**{"pixel accuracy": 0.95, "intersection over union": 0.8}),
}


def test_every_script_is_in_the_readme_and_has_a_check():
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")

    assert sorted(CHECKS) == SCRIPTS
    assert [name for name in SCRIPTS if f"`{name}`" not in readme] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_reaches_what_it_shows(name, tmp_path):
    run = runpy.run_path(str(EXAMPLES / name / "run.py"))["run"]

    found = run(Arguments(tmp_path, device="cpu"))

    CHECKS[name](found)


def test_an_example_trains_the_net_of_its_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # as in the example's own folder, which has a net of this name
    out = Path("runs")
    out.mkdir()
    for folder, name in ((Path(), "own"), (out, "copied")):
        data = 'type: "DummyData" top: "x" dummy_data_param { shape { dim: 1 } }'
        net = f'name: "{name}" layer {{ name: "x" {data} }}'
        (folder / "net.prototxt").write_text(net, encoding="utf-8")
    solver = 'net: "net.prototxt" base_lr: 1 lr_policy: "fixed" snapshot_prefix: "a"'
    (out / "solver.prototxt").write_text(solver, encoding="utf-8")

    trained = train(out / "solver.prototxt", Arguments(out, device="cpu", iterations=1))

    assert trained.net.name == "copied"


@pytest.mark.slow
def test_the_notebook_runs_to_its_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((EXAMPLES / "classification.ipynb").read_text(encoding="utf-8"))
    names: dict[str, object] = {}

    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)

    assert names["accuracy"] > 0.97
    assert names["label"] == 4
    assert names["probabilities"].argmax() == 4


def test_drawn_shapes_are_the_same_for_the_same_seed_and_of_all_classes():
    (images, labels), (again, _) = draw_shapes(100, seed=3), draw_shapes(100, seed=3)

    assert images.shape == (100, 3, 32, 32)
    assert (images == again).all()
    assert set(labels.tolist()) == set(range(2 * len(SHAPES)))


def test_boxes_of_a_scene_hold_its_shapes():
    for scene in scenes(20, 64, shapes=3, most=3):
        covered = scene.classes * 0
        for kind, left, top, right, bottom in scene.boxes:
            part = (slice(int(top), int(bottom)), slice(int(left), int(right)))
            covered[part] = 1
            assert kind in scene.classes[part]

        assert not scene.classes[covered == 0].any()


def test_digits_are_split_in_proportion():
    pytest.importorskip("sklearn", reason="the digits come from scikit-learn")

    split = digits()

    assert split.train[0].shape == (1500, 1, 28, 28)
    assert sorted(set(split.test[1].tolist())) == list(range(10))

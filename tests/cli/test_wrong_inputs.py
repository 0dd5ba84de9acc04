"""Mistakes that newcomers make are told with what is wrong, where, and what to do."""

import json
from pathlib import Path

import pytest
from needs import NO_SUCH_FILE

DEPLOY = """\
name: "small"
layer {
  name: "data"
  type: "Input"
  top: "data"
  input_param { shape { dim: 2 dim: 4 } }
}
layer {
  name: "ip"
  type: "InnerProduct"
  bottom: "data"
  top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } }
}
"""


@pytest.fixture
def told(project, run):
    """Return what ``summary`` says of the net with something in place of something else."""

    def of(right: str, wrong: str) -> str:
        Path("small.prototxt").write_text(DEPLOY.replace(right, wrong))
        return run("summary small.prototxt").stderr

    return of


@pytest.mark.parametrize(
    ("right", "wrong", "said", "marked"),
    [
        ("num_output", "num_outptu", "'num_output'", "num_outptu"),
        ('"InnerProduct"', '"InerProduct"', "InnerProduct", "InerProduct"),
        ('"xavier"', '"xaver"', "'xavier'", "xaver"),
        ('bottom: "data"', 'bottom: "dat"', "'data'", "dat"),
        ("num_output: 3", "num_output: many", "many", "many"),
    ],
)
def test_the_line_is_shown_with_a_mark_below_what_is_wrong(told, right, wrong, said, marked):
    error = told(right, wrong)

    _, line, mark = error.rstrip().rsplit("\n", 2)
    assert said in error
    assert line[mark.index("^") :].startswith(marked)


def test_every_fault_has_its_line(told):
    error = told("top", "tops")

    assert "small.prototxt:5:3: " in error
    assert '    5 |   tops: "data"\n      |   ^' in error


def test_a_brace_that_is_missing_is_asked_for(told):
    error = told("}\nlayer", "layer")

    assert "'}'" in error


def test_a_long_line_is_shown_around_the_fault(told):
    long = f'bottom: "data" {" " * 300} botom: "data"'

    error = told('bottom: "data"', long)

    assert max(map(len, error.splitlines()[1:])) < 140
    assert 'botom: "data"' in error


def test_a_file_that_is_not_there_has_a_near_name(project, run):
    error = run("summary deplyo.prototxt").stderr

    assert "'deploy.prototxt'" in error


def test_a_solver_in_place_of_a_net_is_noticed(project, run):
    error = run("summary solver.prototxt").stderr

    assert "solver.prototxt" in error


def test_a_net_in_place_of_a_solver_is_noticed(project, run):
    error = run("train --solver net.prototxt").stderr

    assert "net.prototxt" in error


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ('"step"', '"stp"', "'step'"),
        ("base_lr: 0.05", "", "base_lr"),
        ("max_iter: 20", "", "max_iter"),
        ("net:", 'type: "Adm" net:', "'Adam'"),
    ],
)
def test_a_field_of_a_solver_is_told_with_its_file(project, run, right, wrong, said):
    file = Path("solver.prototxt")
    file.write_text(file.read_text().replace(right, wrong))

    error = run("train --solver solver.prototxt").stderr

    assert said in error
    assert "solver.prototxt" in error


def test_a_database_that_is_not_there_has_a_near_name(project, run):
    file = Path("net.prototxt")
    file.write_text(file.read_text().replace('"test_lmdb"', '"tset_lmdb"'))

    error = run("summary net.prototxt").stderr

    assert "'test_lmdb'" in error
    assert error.rstrip().endswith("^" * len("tset_lmdb"))


def test_lines_of_files_that_are_no_prototxt_are_not_shown(project, run):
    Path("secret").write_text("root: hidden words\n")
    Path("solver.prototxt").write_text('net: "secret"')

    error = run("train --solver solver.prototxt").stderr

    assert "secret:1:" in error
    assert "hidden words" not in error


def test_arguments_are_called_as_on_the_command_line(project, run):
    error = run("largest_batch deploy.prototxt --keep pron --max-batch 2").stderr

    assert "--keep" in error
    assert "'prob'" in error


def test_values_of_arguments_are_flags_too(project, run):
    run("train --solver solver.prototxt --log_level error")
    file = Path("deploy.prototxt")
    file.write_text(file.read_text().replace("num_output: 3", "num_output: 4"))

    error = run("test --model deploy.prototxt --weights run_iter_20.caffemodel").stderr

    assert "--on_mismatch skip" in error


def test_lint_shows_lines_on_a_terminal_alone(project, run, monkeypatch):
    Path("small.prototxt").write_text(DEPLOY.replace('bottom: "data"', 'bottom: "dat"'))
    piped = run("lint small.prototxt").stdout

    monkeypatch.setattr("demitasse.cli.commands.inspect.terminal_width", lambda: 100)
    shown = run("lint small.prototxt").stdout

    assert "'data'" in piped
    assert "^" not in piped
    assert '   11 |   bottom: "dat"\n      |            ^^^' in shown


def test_a_code_is_explained(run):
    result = run("explain zero-weights")

    assert result.exit_code == 0
    assert result.stdout.startswith("zero-weights: Weights without a filler")
    assert "What to do: Add a filler" in result.stdout
    assert "weight_filler" in result.stdout


def test_without_a_code_all_are_listed(run):
    assert "mirror-in-test" in run("explain").stdout


def test_a_code_that_there_is_not_has_a_near_one(run):
    result = run("explain zero-weight")

    assert result.exit_code == 2
    assert "'zero-weights'" in result.stderr


# -- ``demitasse lint`` --


@pytest.fixture
def sound(project):
    return "net.prototxt"


def test_an_empty_name_is_wrong_usage(run):
    result = run("lint", "")

    assert result.exit_code == 2
    assert "FILE..." in result.stderr


def test_nothing_found(sound, run):
    result = run(f"lint {sound} solver.prototxt")

    assert (result.exit_code, result.stdout) == (0, "nothing found\n")


def test_errors_end_with_3(project, run):
    (project / "bad.prototxt").write_text('layer { name: "a" type: "Nothing" }')

    result = run("lint bad.prototxt")

    assert result.exit_code == 3
    *_, finding, total = result.stdout.splitlines()
    assert finding.startswith("bad.prototxt:1: layer 'a' (Nothing): error: unknown layer type")
    assert total == "1 error"


def test_warnings_count_when_strict(project, run):
    (project / "w.prototxt").write_text((project / "net.prototxt").read_text().replace(
        'weight_filler { type: "xavier" }', ""))  # fmt: skip

    assert run("lint w.prototxt").exit_code == 0
    assert run("lint --strict w.prototxt").exit_code == 3
    assert run("lint w.prototxt").stdout.splitlines()[-1] == "1 warning"


def test_findings_as_json(project, run):
    (project / "bad.prototxt").write_text('layer { name: "a" type: "Nothing" }')

    [one] = json.loads(run("lint bad.prototxt --json").stdout)

    assert (one["severity"], one["code"]) == ("error", "unknown-type")
    assert one["where"] == "bad.prototxt:1: layer 'a' (Nothing)"


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize(
    "arguments",
    [
        "weights diff a b --rtol",
        "train --solver s --min_delta",
        "classify a b --raw_scale",
        "bench --tolerance",
    ],
)
def test_a_number_that_is_not_finite_is_wrong_usage(run, arguments, value):
    done = run(f"{arguments} {value}")

    assert done.exit_code == 2
    assert value in done.stderr


MISSING_FILES = """
run nothing; run nothing a.png; run nothing.onnx a.png; summary nothing.onnx;
serve nothing.onnx; predict nothing.onnx a.npy -o out; consistency nothing.onnx --devices cpu numpy
card nothing.onnx; run nothing.caffemodel a.png; run nothing.toml a.png
run deploy.prototxt a.png --weights nothing; predict nothing a.npy -o out; serve nothing
card nothing weights; card deploy.prototxt nothing; summary nothing; lint nothing
draw_net nothing a.svg
time -model nothing; test -model nothing -weights nothing; bench nothing; largest_batch nothing
bench deploy.prototxt --baseline nothing; consistency nothing --devices cpu numpy
diff nothing deploy.prototxt; diff deploy.prototxt nothing; diff deploy.prototxt nothing.prototxt
train -solver nothing; train -solver solver.prototxt -snapshot nothing
train -solver solver.prototxt -weights nothing; report nothing -o out.html; parse_log nothing .
extract_seconds nothing out; plot_training_log 0 out.png nothing; trust nothing
weights list nothing; weights export nothing out.npz; weights diff nothing nothing
export nothing out.onnx; import nothing; import nothing.onnx; upgrade net nothing out
compute_image_mean nothing; extract_features nothing deploy.prototxt ip out 1 lmdb
convert_imageset ./ nothing out; convert_annoset ./ nothing out; get_image_size . nothing out
consistency deploy.prototxt --devices cpu numpy --inputs nothing.npz
diff deploy.prototxt nothing.npz; summary deploy.prototxt --plugins nothing.py
classify nothing out.npy --model_def deploy.prototxt --pretrained_model nothing
convert_mnist_data nothing nothing out; convert_mnist_siamese_data nothing nothing out
"""


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    "command", [one.strip() for one in MISSING_FILES.replace("\n", ";").split(";") if one.strip()]
)
def test_a_missing_file_is_named_in_one_sentence(run, command):
    before = set(Path().iterdir())

    shown = run(command)

    said = shown.stdout if command.startswith("lint") else shown.stderr
    [line] = [line for line in said.splitlines() if "error:" in line]
    assert shown.exit_code == 3
    assert "nothing" in line
    assert NO_SUCH_FILE in line or "no such" in line  # the system says so, or Demitasse
    assert "Errno" not in line
    assert set(Path().iterdir()) == before


@pytest.mark.usefixtures("project")
def test_an_empty_run_is_called_empty(run):
    Path("run.jsonl").write_text("\n")

    for command in ("report run.jsonl -o out.html", "parse_log run.jsonl ."):
        shown = run(command)

        assert shown.exit_code == 3
        assert "empty" in shown.stderr
        assert "glog" not in shown.stderr


@pytest.mark.usefixtures("trained")
def test_resume_alone_is_auto(run):
    for flags in ("--resume", "-resume", "--resume auto", "--resume=auto", "--resume --exact"):
        shown = run(f"train {flags} -solver solver.prototxt")

        assert shown.exit_code == 0, flags
        assert "Resuming from run_iter_20.solverstate" in shown.stderr


@pytest.mark.parametrize("name", ["mps", "MPS", "xpu"])
@pytest.mark.usefixtures("project")
def test_devices_of_pytorch_are_pointed_to(run, name):
    shown = run(f"summary deploy.prototxt --device {name}")

    assert shown.exit_code == 4
    assert f"'torch:{name.lower()}'" in shown.stderr


@pytest.mark.usefixtures("trained")
def test_unknown_weights_get_a_command_for_a_shell(run):
    Path("my net.prototxt").write_text(Path("deploy.prototxt").read_text())

    said = run("run", "my net.prototxt", "a.png", "--weights", "run_iter_20.caffemodel").stderr

    assert "card 'my net.prototxt' run_iter_20.caffemodel" in said
    assert "Otherwise" not in said


@pytest.mark.parametrize(
    "command", ["summary model.toml", "export model.toml net.py", "time --model model.toml"]
)
def test_a_card_in_place_of_a_net_is_named(project, run, command):
    Path("model.toml").write_text('[model]\nnet = "net.prototxt"\n')

    result = run(command)

    assert result.exit_code == 3
    assert "model.toml: got a model card" in result.stderr

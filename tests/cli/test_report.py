"""``demitasse report``: a page about training runs."""

import json
import re
from pathlib import Path

import pytest
from expect_error import expect_error

from demitasse.cli.run_report import read_run
from demitasse.errors import DataError


def line(kind, iteration, **rest):
    return json.dumps({"time": "now", "kind": kind, "iteration": iteration, **rest})


def scalars(iteration, **values):
    return line("scalars", iteration, values=values)


def written(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_run_is_kept_and_shown(project, run):
    pytest.importorskip("matplotlib")
    assert run("train -solver solver.prototxt --logger jsonl:a.jsonl").exit_code == 0

    result = run("report a.jsonl -o report.html")

    assert result.exit_code == 0, result.output
    page = Path("report.html").read_text(encoding="utf-8")
    for word in ("test0/accuracy", "images per second", "time waiting", "run_iter_20.caffemodel"):
        assert word in page
    for loaded in ("src=", "<link", "<script", "@import", 'href="http', "url(http"):
        assert loaded not in page


def test_images_per_second_are_written_out(project, run):
    pytest.importorskip("matplotlib")
    written(Path("fast.jsonl"), scalars(10, **{"train/loss": 1.0, "images_per_second": 33690.4}))

    assert run("report fast.jsonl -o report.html").exit_code == 0

    assert ">33,690<" in Path("report.html").read_text(encoding="utf-8")


def test_histograms_are_curves_of_quantiles(project, run):
    pytest.importorskip("matplotlib")
    train = "train -solver solver.prototxt --logger jsonl:a.jsonl --histograms 5"
    assert run(train).exit_code == 0

    result = run("report a.jsonl -o report.html")

    assert result.exit_code == 0, result.output
    page = Path("report.html").read_text(encoding="utf-8")
    for word in ("norm of all gradients", "weights/ip/0", "gradients/ip/1", "median"):
        assert word in page


def test_names_in_a_file_are_drawn_as_text(tmp_path, run):
    pytest.importorskip("matplotlib")
    name = r"<b>$\frac$\x1b" + 100 * "x"
    about = {"low": 0, "high": 1, "mean": 0, "norm": 1, "count": 2}
    found = {"weights": about | {"edges": [0, 1], "counts": [2]}}
    lines = (
        scalars(0, **{f"train/{name}": 1.0, "loss": 1.0}),
        line("distributions", 0, facts={"parameters": {name: found}}),
    )
    written(tmp_path / "a.jsonl", *lines)

    result = run(f"report {tmp_path / 'a.jsonl'} -o {tmp_path / 'r.html'}")

    assert result.exit_code == 0, result.output
    assert "<b>" not in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_histograms_need_a_place(project, run):
    result = run("train -solver solver.prototxt --histograms 5")

    assert result.exit_code == 2
    assert "--histograms" in result.stderr
    assert "--logger" in result.stderr


def test_runs_and_logs_are_compared_in_one_chart(project, run):
    pytest.importorskip("matplotlib")
    result = run("train -solver solver.prototxt --logger jsonl:a.jsonl")
    Path("b.log").write_text(result.stderr)

    result = run("report a.jsonl b.log -o report.html")

    assert result.exit_code == 0, result.output
    page = Path("report.html").read_text(encoding="utf-8")
    assert "Training: a, b" in page
    kept, logged = (read_run(Path(name)).points("test0/accuracy") for name in ("a.jsonl", "b.log"))
    assert kept == logged


def test_a_run_that_goes_on_is_one_curve(project, run):
    text = Path("solver.prototxt").read_text()
    Path("solver.prototxt").write_text(text.replace("display: 5", "display: 5 snapshot: 10"))
    train = "train -solver solver.prototxt --logger jsonl:a.jsonl"
    assert run(train).exit_code == 0
    once = read_run(Path("a.jsonl")).points("loss")

    assert run(f"{train} --snapshot run_iter_10.solverstate").exit_code == 0

    assert read_run(Path("a.jsonl")).points("loss") == once


def test_where_a_run_goes_on_later_numbers_of_before_are_forgotten(tmp_path):
    path = written(
        tmp_path / "a.jsonl",
        line("begin", 0, facts={}),
        scalars(0, loss=3.0),
        scalars(5, loss=2.0),
        scalars(7, loss=1.0),
        line("begin", 5, facts={}),
        scalars(5, loss=2.5),
    )

    assert read_run(path).points("loss") == [(0, 3.0), (5, 2.5)]


def test_the_test_nets_of_a_log_are_told_apart(tmp_path):
    log = ["I1130 10:00:00.000000 1 solver.cpp:279] Solving n"]
    for net, value in enumerate((0.1, 0.2)):
        log.append(f"I1130 10:00:01.000000 1 a.cpp:1] Iteration 0, Testing net (#{net})")
        log.append(f"I1130 10:00:01.000000 1 a.cpp:2]     Test net output #0: accuracy = {value}")

    run = read_run(written(tmp_path / "a.log", *log))

    assert run.scalars == {"test0/accuracy": {0.0: 0.1}, "test1/accuracy": {0.0: 0.2}}


def test_half_a_line_is_passed_over(tmp_path):
    path = written(tmp_path / "a.jsonl", scalars(0, loss=3.0), '{"kind": "sca', scalars(1, loss=2))

    assert read_run(path).points("loss") == [(0, 3.0), (1, 2.0)]


def test_numbers_that_json_lacks_are_read(tmp_path):
    path = written(tmp_path / "a.jsonl", scalars(0, loss="inf"), scalars(1, loss=None))

    (_, infinite), (_, nothing) = read_run(path).points("loss")

    assert infinite == float("inf")
    assert nothing != nothing  # noqa: PLR0124 - NaN


def test_an_iteration_that_no_run_has_is_passed_over(tmp_path):
    path = written(tmp_path / "run.jsonl", scalars(10**400, loss=1.0), scalars(3, loss=2.0))

    assert read_run(path).points("loss") == [(3, 2.0)]


@pytest.mark.parametrize("values", [(1e308, -1e308), (1e-308, 1e308), (5e-324, 1.0)])
def test_values_next_to_infinity_are_gaps(project, run, values):
    pytest.importorskip("matplotlib")
    written(Path("run.jsonl"), *(scalars(i, loss=value) for i, value in enumerate(values)))

    assert run("report run.jsonl -o report.html").exit_code == 0


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"kind": "scalars", "iteration": 0}', "text"])
def test_what_is_no_run_is_bad_data(tmp_path, text):
    path = written(tmp_path / "a.jsonl", text)

    with expect_error(DataError, place=str(path)):
        read_run(path)


def test_names_are_escaped_and_broken_nets_not_drawn(project, run):
    pytest.importorskip("matplotlib")
    facts = {"net": "<script>", "prototxt": "layer {"}
    written(Path("a.jsonl"), line("begin", 0, facts=facts), scalars(0, **{"test0/<b>": 1.0}))

    assert run("report a.jsonl -o report.html").exit_code == 0

    page = Path("report.html").read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "<b>" not in page


def test_a_target_of_an_unknown_kind_is_wrong(project, run):
    result = run("train -solver solver.prototxt --logger csv:a")

    assert result.exit_code != 0
    assert "jsonl:PATH" in result.stderr


FACTS = {"net": "small", "momentum": 0.9, "stepvalue": [10, 20]}


def test_training_and_test_share_a_chart(project, run):
    pytest.importorskip("matplotlib")
    values = {"smoothed_loss": 2.0, "train/loss": 2.0, "test0/loss": 3.0, "test0/accuracy": 0.5}
    written(Path("a.jsonl"), scalars(0, **values), scalars(5, **values))

    assert run("report a.jsonl -o report.html").exit_code == 0

    page = Path("report.html").read_text(encoding="utf-8")
    titles = re.findall(r"<title>iteration 5\n(.*?)</title>", page, re.DOTALL)
    assert titles == ["training: 2\ntest: 3", "accuracy: 0.5"]


def test_several_losses_have_charts_of_their_own(project, run):
    pytest.importorskip("matplotlib")
    written(Path("a.jsonl"), scalars(0, **{"loss": 3.0, "train/loss1": 1.0, "train/loss2": 2.0}))

    assert run("report a.jsonl -o report.html").exit_code == 0

    page = Path("report.html").read_text(encoding="utf-8")
    assert re.findall(r"<title>iteration 0\n(.*?)</title>", page) == [
        "total loss: 3", "loss1: 1", "loss2: 2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "kept", "best"),
    [
        ({"test0/accuracy": [0.5, 0.9, 0.8], "test0/loss": [1.0, 2.0, 3.0]}, None, "b"),
        ({"test0/loss": [1.0, 2.0, 3.0]}, None, "a"),
        ({"test0/loss": [1.0, 2.0, 3.0]}, "c", "c"),
        ({"test0/loss": ["nan", 2.0, 3.0]}, None, "b"),
        ({"loss": [1.0, 2.0, 3.0]}, None, None),
    ],
)
def test_the_best_snapshot_is_marked(project, run, values, kept, best):
    pytest.importorskip("matplotlib")
    lines = [line("begin", 0, facts=FACTS)]
    for number, name in enumerate("abc"):
        lines.append(scalars(number, **{key: found[number] for key, found in values.items()}))
        kind = "best" if name == kept else "snapshot"
        lines.append(line(kind, number, facts={"weights": name}))
    written(Path("a.jsonl"), *lines)

    assert run("report a.jsonl -o report.html").exit_code == 0

    page = Path("report.html").read_text(encoding="utf-8")
    marked = re.findall(r"<td>(\w)</td><td[^>]*>[^<]*</td><td>best</td>", page)
    assert marked == ([best] if best else [])


def test_a_page_has_all_settings_of_the_solver(project, run):
    pytest.importorskip("matplotlib")
    solver = Path("solver.prototxt")
    solver.write_text(solver.read_text() + "\nweight_decay: 0.0005 clip_gradients: 35\n")
    train = "train -solver solver.prototxt --logger jsonl:a.jsonl --keep_best accuracy"
    assert run(train).exit_code == 0

    history = read_run(Path("a.jsonl"))

    assert history.facts["weight_decay"] == 0.0005
    assert history.facts["clip_gradients"] == 35
    assert "net_param" not in history.facts
    assert history.best.endswith("_best.caffemodel")
    assert run("report a.jsonl -o report.html").exit_code == 0
    page = Path("report.html").read_text(encoding="utf-8")
    assert "<dt>weight_decay</dt><dd>0.0005</dd>" in page


def test_histograms_are_folded(project, run):
    pytest.importorskip("matplotlib")
    about = {"low": 0, "high": 1, "mean": 0, "norm": 1, "count": 2, "edges": [0, 1], "counts": [2]}
    facts = {"parameters": {"ip/0": {"weights": about}}}
    written(Path("a.jsonl"), scalars(0, loss=1.0), line("distributions", 0, facts=facts))

    assert run("report a.jsonl -o report.html").exit_code == 0

    page = Path("report.html").read_text(encoding="utf-8")
    opened, folded = page.split("<details>")
    assert "weights/ip/0" in folded
    assert "weights/ip/0" not in opened

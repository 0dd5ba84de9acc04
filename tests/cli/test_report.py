"""``demitasse report``: a page about training runs."""

import json
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
    for word in ("Norm of all gradients", "weights/ip/0", "gradients/ip/1", "median"):
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

"""``demitasse lint``."""

import json

import pytest


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

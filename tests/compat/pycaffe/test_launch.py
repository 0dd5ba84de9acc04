"""``python -m demitasse.pycaffe``: programs run as ever, and find ``caffe``."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from needs import needs

from demitasse.compat.pycaffe import launch

ROOT = Path(__file__).resolve().parents[3]

SHOW = """
import caffe, json, os, subprocess, sys
child = [sys.executable, "-c", "import caffe; print(caffe.__name__)"]
print(json.dumps({
    "caffe": caffe.__name__, "name": __name__, "argv": sys.argv, "folder": sys.path[0],
    "file": globals().get("__file__"),
    "main": sys.modules["__main__"].__dict__ is globals(),
    "child": subprocess.run(child, capture_output=True, text=True).stdout.strip(),
}))
"""


@pytest.fixture
def run(tmp_path):
    """Run the launcher in a folder; return the finished process."""

    def run(*arguments, **environment):
        return subprocess.run(
            [sys.executable, "-m", "demitasse.pycaffe", *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def shown(done):
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["caffe"], found["child"]) == ("demitasse.compat.pycaffe",) * 2
    assert (found["name"], found["main"]) == ("__main__", True)
    return found


def test_a_script_runs_as_the_interpreter_runs_it(run, tmp_path):
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "show.py"
    script.write_text(SHOW)

    found = shown(run("scripts/show.py", "a", "-b"))

    assert found["argv"] == ["scripts/show.py", "a", "-b"]
    assert found["file"] == "scripts/show.py"
    assert found["folder"] == str(script.parent)


def test_a_module_runs(run, tmp_path):
    (tmp_path / "show.py").write_text(SHOW)

    found = shown(run("-m", "show", "a"))

    assert found["argv"] == [str(tmp_path / "show.py"), "a"]
    assert found["folder"] == str(tmp_path)


def test_a_line_of_code_runs(run):
    found = shown(run("-c", SHOW, "a"))

    assert found["argv"] == ["-c", "a"]
    assert (found["folder"], found["file"]) == ("", None)


def test_the_interpreter_may_be_named(run, tmp_path):
    (tmp_path / "show.py").write_text(SHOW)

    assert shown(run(sys.executable, "show.py", "a"))["argv"] == ["show.py", "a"]


POOL = """
import sys
from multiprocessing import get_context


def look(number):
    import caffe

    return caffe.__name__, sys.argv[number]


if __name__ == "__main__":
    with get_context("spawn").Pool(1) as pool:
        print(*pool.map(look, [1])[0])
"""


def test_processes_that_begin_anew_find_caffe(run, tmp_path):
    (tmp_path / "pool.py").write_text(POOL)

    assert run("pool.py", "a").stdout.split() == ["demitasse.compat.pycaffe", "a"]


def test_processes_that_begin_anew_find_ours_beside_another(run, tmp_path):
    other = tmp_path / "python" / "caffe"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise ImportError('theirs')")
    (tmp_path / "both.py").write_text(
        f"import sys; sys.path.insert(0, {str(other.parent)!r}); import caffe\n"
        "from multiprocessing import get_context\n"
        "print(caffe.__name__, flush=True)\n"
        "if __name__ == '__main__':\n"
        "    child = get_context('spawn').Process(target=print)\n"
        "    child.start(); child.join()\n"
    )

    assert run("both.py").stdout.split() == ["demitasse.compat.pycaffe"] * 2


@needs("a POSIX shell")
@pytest.mark.parametrize("first", ["#!/bin/sh\n", "#!\n", ""], ids=["sh", "none", "no line"])
def test_any_program_runs_and_its_children_find_caffe(run, tmp_path, first):
    script = tmp_path / "all.sh"
    script.write_text(f'{first}"{sys.executable}" -c "import caffe; print(caffe.__name__)"\nexit 5')
    script.chmod(0o755)

    done = run("./all.sh")

    assert (done.stdout.strip(), done.returncode) == ("demitasse.compat.pycaffe", 5)


@pytest.mark.parametrize(("code", "status"), [("raise SystemExit(7)", 7), ("1 / 0", 1), ("", 0)])
def test_the_exit_status_is_the_programs(run, tmp_path, code, status):
    (tmp_path / "ends.py").write_text(code)

    assert run("ends.py").returncode == status


def test_kernels_of_notebooks_are_started_the_same_way():
    [spec] = (launch.CHILDREN / "jupyter").glob("kernels/*/kernel.json")

    command = json.loads(spec.read_text())["argv"]

    assert spec.parent.name == "python3"  # in place of the kernel that is always there
    assert command[:5] == ["python", "-P", "-m", "demitasse.pycaffe", "-m"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ([], 2, "usage:"),
        (["-m"], 2, "-m needs an argument"),
        (["nowhere.sh"], 2, "'nowhere.sh' is neither a file nor a program"),
        (["--help"], 0, "usage:"),
        (["--version"], 0, "demitasse "),
    ],
)
def test_wrong_usage_is_explained(arguments, status, said, capsys):
    with pytest.raises(SystemExit) as caught:
        launch.main(arguments)

    assert caught.value.code == status
    assert said in "".join(capsys.readouterr())


@needs("modes")
def test_a_script_that_is_named_by_its_path_is_python(tmp_path):
    script = tmp_path / "show"
    script.write_text("#!/usr/bin/env python3\n")
    script.chmod(0o755)

    assert launch._is_python(script, by_path=True)
    assert not launch._is_python(script, by_path=False)

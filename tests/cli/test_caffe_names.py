"""Caffe's names: modules of demitasse.tools, executables, old tools, GPUs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from needs import needs

import demitasse
from demitasse.backends.cupy import CupyBackend
from demitasse.cli.commands import CAFFE_TOOLS
from demitasse.cli.commands.caffe import EXAMPLE_SHIMS, REMOVED, SHIMS, command_first
from demitasse.tools import NAMES

ROOT = Path(demitasse.__file__).parent


def call(*args, **options):
    environment = os.environ | {"PYTHONPATH": str(ROOT.parent)}
    return subprocess.run(
        args, capture_output=True, text=True, env=environment, check=False, **options
    )


def test_every_tool_has_its_command():
    assert {*SHIMS, *EXAMPLE_SHIMS.values()} <= NAMES <= {"caffe", *CAFFE_TOOLS, *REMOVED}


@pytest.mark.parametrize("name", sorted(CAFFE_TOOLS))
def test_a_tool_is_a_command_of_caffe_and_a_hidden_command(run, name):
    in_group, alone = run(f"caffe {name} --help"), run(f"{name} --help")

    assert (in_group.exit_code, alone.exit_code) == (0, 0)
    assert in_group.stdout.partition("\n\n")[2] == alone.stdout.partition("\n\n")[2]


def test_a_tool_can_be_imported():
    code = "import demitasse.tools.convert_imageset as tool; print(tool.__name__)"

    assert call(sys.executable, "-c", code).stdout == "demitasse.tools.convert_imageset\n"


@pytest.mark.parametrize("args", ["--help", "a b"])
def test_a_tool_is_its_verb_and_fails_with_1(args):
    done = call(sys.executable, "-m", "demitasse.tools.convert_imageset", *args.split())

    assert done.returncode == ("help" not in args)
    assert "LISTFILE" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("train --solver=a", "train --solver=a"),
        ("--solver=a train", "train --solver=a"),
        ("-phase test -gpu=0 time", "time -phase test -gpu=0"),
        ("--nothing", "--nothing"),
    ],
)
def test_the_command_of_caffe_may_come_after_flags(given, meant):
    assert command_first(given.split()) == meant.split()


def test_commands_of_caffe_take_the_flags_of_each_other(trained, run):
    flags = "-weights run_iter_20.caffemodel -iterations=1"

    done = run(f"caffe {flags} -solver=s time -model net.prototxt")
    assert done.exit_code == 0
    assert "--weights has no effect on this command" in done.stderr
    assert "--solver has no effect on this command" in done.stderr
    assert run(f"test {flags} -model net.prototxt -sigint-effect stop -phase TEST").exit_code == 0
    assert run("summary net.prototxt -iterations 1").exit_code == 2


def test_flags_without_a_command_of_caffe_are_told_the_commands(run):
    result = run("caffe -solver=a -gpu 0")

    assert result.exit_code == 2
    assert "got --solver without a command; give train, test, time or device_query" in result.stderr


def test_caffe_has_its_version_in_its_words(run):
    """Programs that call ``caffe`` read it, e.g. DIGITS."""
    assert run("caffe -version").stdout.startswith("caffe version 1.0.0 (demitasse ")


def test_a_misspelt_tool_is_answered_with_the_right_one(run):
    assert "No such command 'trian'. Did you mean 'train'?" in run("caffe trian").output


@pytest.mark.parametrize(("name", "meant"), [("caffe", "caffe"), ("draw_net", "caffe draw_net")])
def test_the_usage_of_a_tool_can_be_typed(name, meant):
    found = call(sys.executable, "-m", f"demitasse.tools.{name}", "--nope")

    assert f"Usage: demitasse {meant} [OPTIONS]" in found.stderr
    assert f"Try 'demitasse {meant} --help' for help." in found.stderr


@needs("a POSIX shell")
def test_executables_stand_where_caffe_builds_them(tmp_path, run):
    assert run("caffe-shims", str(tmp_path / "build" / "tools")).exit_code == 0

    caffe = call(tmp_path / "build" / "tools" / "caffe", "train", "--help")
    usage = call(tmp_path / "build" / "examples" / "mnist" / "convert_mnist_data.bin")

    assert (caffe.returncode, "--solver" in caffe.stdout) == (0, True)
    assert (usage.returncode, "IMAGES" in usage.stderr) == (1, True)
    for place in ("tools/compute_image_mean", "tools/extract_features.bin",
                  "examples/cifar10/convert_cifar_data.bin",
                  "examples/siamese/convert_mnist_siamese_data.bin"):  # fmt: skip
        assert os.access(tmp_path / "build" / place, os.X_OK)


@pytest.mark.parametrize("name", REMOVED)
def test_old_tools_say_what_took_their_place(run, name):
    result = run(f"{name} solver.prototxt -x 1")

    assert result.exit_code == 1
    assert f"demitasse {REMOVED[name].split()[0]}" in result.stderr


# -- upgrades under their old names ------------------------------------------------------------


def test_upgrades(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    Path("net").write_text('layers { name: "r" type: RELU bottom: "a" top: "b" }')
    Path("solver").write_text("solver_type: ADAM")

    assert run("upgrade_net_proto_text net net2").exit_code == 0
    assert run("upgrade_solver_proto_text solver solver2").exit_code == 0

    assert 'type: "ReLU"' in Path("net2").read_text()
    assert 'type: "Adam"' in Path("solver2").read_text()


# -- GPUs --------------------------------------------------------------------------------------


def test_all_gpus_where_there_is_none(project, run, monkeypatch):
    monkeypatch.setattr(CupyBackend, "devices", classmethod(lambda cls: []))
    monkeypatch.setattr(CupyBackend, "missing", classmethod(lambda cls: "there is no driver"))

    result = run("train -solver solver.prototxt -gpu all")

    assert result.exit_code == 4
    assert "there is no driver" in result.stderr


@pytest.mark.parametrize("verb", ["train -solver solver.prototxt", "time -model deploy.prototxt"])
@pytest.mark.parametrize("gpus", ["all", "3", "3,3"])
def test_the_only_gpu_is_meant_by_all(project, run, monkeypatch, verb, gpus):
    monkeypatch.setattr(CupyBackend, "devices", classmethod(lambda cls: ["cuda:3"]))
    chosen = []
    monkeypatch.setattr("demitasse.cli.options._gpus", _noting(chosen))

    run(f"{verb} -gpu {gpus}")

    assert chosen == ["cuda:3"]


def _noting(chosen):
    from demitasse.cli.options import _gpus

    def gpus(text):
        chosen.append(_gpus(text)[0])
        return ["numpy"]

    return gpus


def test_a_net_that_is_only_run_runs_on_the_first_of_several(project, run, monkeypatch):
    monkeypatch.setattr(CupyBackend, "devices", classmethod(lambda cls: ["cuda:1", "cuda:2"]))
    chosen = []
    monkeypatch.setattr("demitasse.cli.options._gpus", _noting(chosen))

    assert run("time -model deploy.prototxt -gpu all -iterations 1").exit_code == 0

    assert chosen == ["cuda:1"]

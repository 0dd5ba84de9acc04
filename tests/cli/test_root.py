"""The command as a whole: spelling, exit codes, what it costs, and completion."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from needs import NO_SUCH_FILE, needs

from demitasse import __version__, errors
from demitasse.cli.commands import MODULES
from demitasse.cli.errors import EXIT_CODES, exit_code
from demitasse.cli.gflags import double_dashes
from demitasse.cli.root import COMMANDS, cli

HEAVY = {"PIL", "cupy", "google.protobuf", "h5py", "lmdb", "numpy", "sklearn"}


def loaded_after(*args: str) -> set[str]:
    """The modules of a fresh interpreter that has run the command line."""
    code = (
        "import json, sys\nfrom demitasse.cli import main\n"
        f"try:\n    main({list(args)!r})\nexcept SystemExit:\n    pass\n"
        "print(json.dumps(list(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("args", [["--help"], ["train", "--help"], ["weights", "list", "--help"]])
def test_help_loads_no_library(args):
    assert not loaded_after(*args) & HEAVY


def test_help_names_every_listed_command(run):
    shown = run("--help").stdout

    assert [verb for verb in COMMANDS if f"\n  {verb} " not in shown] == []


@pytest.mark.parametrize("verb", sorted(MODULES))
def test_every_command_explains_itself(run, verb):
    result = run(f"{verb} -help")

    assert result.exit_code == 0


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_has_whole_sentences(run, verb):
    assert "..." not in next(
        line for line in run("--help").stdout.splitlines() if line.startswith(f"  {verb} ")
    )


@pytest.mark.parametrize("args", ["--version", "-version", "version"])
def test_version(run, args):
    assert run(args).stdout == f"demitasse {__version__}\n"


def test_version_as_json(run):
    assert json.loads(run("version --json").stdout) == {"demitasse": __version__}


def test_python_m_is_the_same(start):
    out, _ = start("--version").communicate()

    assert out == f"demitasse {__version__}\n"


# -- spelling ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("-solver a -gpu=0 --weights=b", "--solver a --gpu=0 --weights=b"),
        ("-iterations -5 -h", "--iterations -5 -h"),
        ("-logtostderr=1 --noalsologtostderr -v=2 train", "train"),
        ("-v 2 --logbuflevel -1 -logbufsecs=-1 time 5", "time 5"),
        ("-stderrthreshold -solver a 5", "--solver a 5"),
        ("-a_b=c=d -- -solver x", "--a_b=c=d -- -solver x"),
        ("report a -o=b=c.html -- -o=d", "report a -ob=c.html -- -o=d"),
    ],
)
def test_one_dash_is_as_good_as_two(given, meant):
    assert " ".join(double_dashes(given.split())) == meant


@pytest.mark.parametrize("args", ["train", "trian", "train -slover x", "train -solver", "-nothing"])
def test_wrong_usage_is_2(run, args):
    result = run(args)

    assert result.exit_code == 2
    assert "Error: " in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        "consistency deploy.prototxt --devices cpu numpy",
        "diff deploy.prototxt deploy.prototxt",
        "export deploy.prototxt net.onnx --check",
        "convert_mnist_siamese_data images labels db",
    ],
)
def test_a_negative_seed_is_wrong_usage(project, run, args):
    assert run(f"{args} --seed -1").exit_code == 2


def test_a_misspelt_verb_is_answered_with_the_right_one(run):
    assert "'train'" in run("trian -solver x").stderr


def test_a_misspelt_flag_is_answered_with_the_right_one(run):
    assert "--solver" in run("train -slover x").stderr


# -- exit codes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("ConfigError", 3),
        ("DataError", 3),
        ("DemitasseError", 1),
        ("DeviceError", 4),
        ("NetError", 3),
        ("OutOfMemoryError", 4),
        ("PrototxtError", 3),
        ("ShapeError", 3),
        ("SnapshotError", 3),
        ("WeightsError", 3),
    ],
)
def test_every_exception_has_its_code(name, code):
    assert exit_code(getattr(errors, name)("message")) == code


def test_no_exception_is_forgotten():
    assert {kind.__name__ for kind in EXIT_CODES} >= set(errors.__all__) - {"ErrorCode"}


def test_a_failure_is_one_message_and_no_traceback(run):
    result = run("test -model none.prototxt -weights none.caffemodel")

    assert result.exit_code == 3
    assert result.stderr == f"error: none.prototxt: {NO_SUCH_FILE}\n"


@needs("/dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_failure_that_cannot_be_told_has_its_code_all_the_same(start, unbuffered):
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        process = start("summary none.prototxt", stderr=full, env=environment)

        assert process.wait() == 3


@needs("/dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("args", ["--help", "train --help", "--version", "version"])
def test_what_cannot_be_printed_is_one_message(start, args, unbuffered):
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        process = start(args, stdout=full, env=environment)
        _, stderr = process.communicate()

    assert process.returncode == 1
    told = os.strerror(errno.ENOSPC)
    assert stderr == f"error: standard output cannot be written to: {told}\n"


@needs("/dev/full")
@pytest.mark.parametrize("args", ["no_such_verb", "summary", "largest_batch --no_such_flag"])
def test_wrong_usage_that_cannot_be_told_has_its_code_all_the_same(start, args):
    with Path("/dev/full").open("w") as full:
        process = start(args, stderr=full)

        assert process.wait() == 2


@needs("/dev/full")
def test_what_is_said_beside_the_work_does_not_end_it(start, tmp_path):
    net = tmp_path / "net.prototxt"
    net.write_text(
        'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 2 } } }'
    )
    with Path("/dev/full").open("w") as full:
        process = start(f"largest_batch {net} --max-batch 4 --no_confirm", stderr=full)
        stdout, _ = process.communicate()

    assert process.returncode == 0
    assert "4" in stdout


@needs("links")
def test_links_in_a_circle_are_one_message(run, tmp_path):
    (tmp_path / "circle").symlink_to(tmp_path / "circle")

    result = run(f"caffe_shims {tmp_path}/circle")

    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)


def test_at_log_level_debug_a_failure_shows_where_from(run, monkeypatch):
    monkeypatch.setenv("DEMITASSE_LOG_LEVEL", "debug")

    result = run("test -model none.prototxt -weights none.caffemodel")

    assert result.exit_code == 3
    assert "Traceback" in result.stderr
    assert result.stderr.endswith(f"error: none.prototxt: {NO_SUCH_FILE}\n")


def test_a_setting_that_cannot_be_read_is_wrong_usage(run, monkeypatch):
    monkeypatch.setenv("DEMITASSE_OPTIMIZE", "perhaps")

    result = run("version")

    assert result.exit_code == 2
    assert "DEMITASSE_OPTIMIZE" in result.stderr


def test_a_device_that_is_unknown_is_4(project, run):
    assert run("time -model deploy.prototxt -device abacus").exit_code == 4


def test_a_closed_pipe_is_no_failure_to_talk_about(trained, start):
    process = start("weights list run_iter_20.caffemodel")
    process.stdout.close()

    assert process.stderr.read() == ""
    process.wait()


# -- completion --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("demitasse tr", "train"), ("demitasse train --so", "--solver")],
)
def test_completion_offers_verbs_and_flags(typed, offered):
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    environment = os.environ | {"_DEMITASSE_COMPLETE": "bash_complete"} | words

    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'demitasse'; "
         "from demitasse.cli import main; main()"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert offered in [line.partition(",")[2] for line in done.stdout.splitlines()]


@needs("a POSIX shell")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.usefixtures("project")
def test_closed_streams_lead_nowhere(closed):
    """A file that is written must not be given the number of a stream, or it holds what is said."""
    words = f'exec "$0" -m demitasse summary deploy.prototxt {closed}'

    done = subprocess.run(["sh", "-c", words, sys.executable], capture_output=True, check=False)

    assert (done.returncode, done.stderr) == (0, b"")
    assert bool(done.stdout) == (">&-" not in closed.split())


@needs("a POSIX shell")
def test_a_closed_stream_takes_its_own_number():
    code = "import os, sys\nfrom demitasse.cli import _open_streams\n_open_streams()\n"
    code += "assert [one.fileno() for one in (sys.stdin, sys.stdout, sys.stderr)] == [0, 1, 2]\n"
    code += "os.write(2, b'x'); print('x')"

    words = 'exec "$0" -c "$1" <&- >&- 2>&-'
    done = subprocess.run(["sh", "-c", words, sys.executable, code], check=False)

    assert done.returncode == 0


def test_an_interrupt_while_a_verb_is_imported_ends_as_one_does_later(run, monkeypatch):
    def interrupt(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("demitasse.cli.command.import_module", interrupt)

    result = run("summary net.prototxt")

    assert result.exit_code == 130
    assert result.stderr == "error: interrupted\n"


@needs("deletion of open files")
def test_a_file_beside_nothing_is_told_with_the_working_directory(project, tmp_path, run):
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)  # the fixture goes back
    gone.rmdir()

    read = run(f"summary {tmp_path}/deploy.prototxt")
    written = run(f"draw_net {tmp_path}/deploy.prototxt net.svg")

    assert read.exit_code == 0
    assert written.exit_code == 1
    assert "directory" in written.stderr


# -- What the shell offers --


def offered(words: str, incomplete: str) -> list[tuple[str, str]]:
    shell = ShellComplete(cli, {}, "demitasse", "_DEMITASSE_COMPLETE")
    return [(one.type, one.value) for one in shell.get_completions(words.split(), incomplete)]


def test_devices_that_are_here():
    assert ("plain", "cpu") in offered("summary --device", "")
    assert ("plain", "cpu,numpy") in offered("consistency --devices", "cpu,nu")


@pytest.mark.parametrize("words", ["summary", "train --solver", "train --weights", "lint"])
def test_files_are_left_to_the_shell(words):
    assert [kind for kind, _ in offered(words, "")] == ["file"]


def test_verbs_codes_and_loggers():
    assert offered("", "expl") == [("plain", "explain")]
    assert offered("explain", "zero") == [("plain", "zero-weights")]
    assert offered("train --logger", "j") == [("plain", "jsonl:")]

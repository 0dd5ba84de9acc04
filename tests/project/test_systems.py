"""Systems that the tests do not run on: what those lack is taken away, and commands run.

Their kernels, linkers and file systems are not imitated, nor are ``os.name`` and ``sys.platform``,
by which other libraries know where they are. Files that are open or mapped cannot be deleted or
replaced on Windows; so it is here. What is shown is that nothing is needed that only
Linux on x86-64 has: neither the libraries that are installed there alone, nor functions of Python's
that others do not have. Linux on other processors lacks less than macOS does.
"""

import os
import re
import signal
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
from needs import needs
from PIL import Image

from demitasse.examples import digits
from demitasse.examples.data import Split, write_databases

pytestmark = needs("/proc")  # it is read for the files in use

SYSTEMS = {
    "Darwin": {
        "machine": "arm64", "modules": ["llvmlite"], "sockets": [],
        "functions": ["sched_getaffinity", "posix_fadvise", "posix_fallocate", "memfd_create"],
        "signals": ["SIGPWR", "SIGPOLL", "SIGSTKFLT", "SIGRTMIN"],
    },
    "Windows": {
        "machine": "AMD64",
        "sockets": ["send_fds", "recv_fds", "SO_REUSEPORT", "MSG_NOSIGNAL"],
        "modules": ["llvmlite", "resource", "fcntl", "pwd", "grp", "termios", "tty", "readline"],
        "functions": [
            "fork", "forkpty", "getloadavg", "mkfifo", "mknod", "nice", "posix_fadvise",
            "posix_fallocate", "memfd_create", "register_at_fork", "sched_getaffinity",
            "sched_yield", "sysconf", "sync",
        ],
        "signals": [
            "SIGALRM", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH",
            "pthread_sigmask", "pthread_kill", "setitimer", "alarm", "sigwait",
        ],
    },
}  # fmt: skip

CHILD = """
import asyncio, multiprocessing, os, platform, signal, socket, subprocess, sys, tempfile
import numpy
name, taken, commands = sys.argv[1], eval(sys.argv[2]), eval(sys.argv[3])
for module in taken["modules"]:
    sys.modules[module] = None
for function in taken["functions"]:
    if hasattr(os, function):
        delattr(os, function)
for module, names in ((signal, taken["signals"]), (socket, taken["sockets"])):
    for function in names:
        if hasattr(module, function):
            delattr(module, function)
platform.system, platform.machine = lambda: name, lambda: taken["machine"]

sys.modules["llvmlite"] = None
if name == "Windows":
    subprocess.Popen.kill = subprocess.Popen.terminate

    def files_in_use():
        for handle in os.listdir("/proc/self/fd"):
            try:
                yield os.readlink(f"/proc/self/fd/{handle}")
            except OSError:
                pass
        with open("/proc/self/maps") as maps:
            yield from (line.split(maxsplit=5)[-1].strip() for line in maps)

    def refusing(function):
        def call(path, *more, **options):
            for one in (path, *more):
                if isinstance(one, (str, os.PathLike)) and not options:
                    if os.path.realpath(one) in set(files_in_use()):
                        raise PermissionError(13, "it is used by a process", os.fspath(one))
            return function(path, *more, **options)
        return call

    for function in ("unlink", "remove", "rename", "replace"):
        setattr(os, function, refusing(getattr(os, function)))

from demitasse.cli import main
for arguments in commands:
    print("$", *arguments, flush=True)
    try:
        main(list(arguments))
    except SystemExit as end:
        if end.code and arguments[0] != "doctor":  # to which the slow path is a problem
            raise
"""

IMAGES = np.arange(32 * 16 * 16, dtype=np.uint8).reshape(32, 1, 16, 16)
LABELS = np.arange(32) % 10


@pytest.fixture
def folder(tmp_path):
    """A folder with the example's prototxts, and databases of 32 images."""
    for name in digits.PROTOTXTS:
        text = (digits.HERE / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace(digits.PREFIX, (tmp_path / "run").as_posix()))
    lines = (tmp_path / "solver.prototxt").read_text().splitlines()
    longer = ("max_iter", "test_iter", "test_interval")
    short = [line for line in lines if not line.startswith(longer)]
    (tmp_path / "solver.prototxt").write_text("\n".join([*short, "max_iter: 4 snapshot: 2"]))
    split = Split((IMAGES, LABELS), (IMAGES, LABELS))
    write_databases(tmp_path, split, ("train_lmdb", "test_lmdb"))
    return tmp_path


def command(system, *commands):
    """Return the command line of a process that runs commands one after the other."""
    return [sys.executable, "-c", CHILD, system, repr(SYSTEMS[system]), repr(commands)]


def run(system, folder, *commands):
    done = subprocess.run(
        command(system, *commands), cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


TRAIN = ("train", "--solver", "solver.prototxt")


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_net_is_trained_and_its_run_taken_up_where_only_numpy_computes(system, folder):
    said = run(system, folder, TRAIN)
    first = (folder / "run_iter_4.caffemodel").read_bytes()
    run(system, folder, (*TRAIN, "--snapshot", "run_iter_2.solverstate"))

    assert "slow path" in said
    assert (folder / "run_iter_4.caffemodel").read_bytes() == first


WEIGHTS = ("--weights", "run_iter_4.caffemodel")
CARD = ("card", "deploy.prototxt", WEIGHTS[1], "--channels", "gray", "--scale", "0.0039",
        "--mean", "none")  # fmt: skip
COMMANDS = [
    (*TRAIN, "--logger", "jsonl:run.jsonl"),
    (*TRAIN, "--resume", "auto"),
    ("test", "--model", "train_test.prototxt", *WEIGHTS, "--iterations", "2"),
    ("time", "--model", "train_test.prototxt", "--iterations", "2"),
    ("bench", "deploy.prototxt", "--batches", "1", "--seconds", "0.1", "--rounds", "1"),
    ("summary", "deploy.prototxt", "--runs"),
    ("lint", "solver.prototxt"),
    ("compute_image_mean", "train_lmdb", "mean.binaryproto"),
    ("extract_features", WEIGHTS[1], "train_test.prototxt", "label", "features", "2", "lmdb"),
    ("weights", "list", WEIGHTS[1]),
    ("weights", "export", WEIGHTS[1], "weights.npz"),
    ("upgrade", "net", "train_test.prototxt", "upgraded.prototxt"),
    ("largest_batch", "deploy.prototxt", "--max_batch", "4"),
    ("report", "run.jsonl", "--out", "report.html"),
    CARD,
    ("run", "model.toml", "image.png"),
    ("predict", "model.toml", "image.png", "--out", "predictions"),
    ("doctor",),
]  # fmt: skip


@pytest.mark.parametrize("system", SYSTEMS)
def test_commands_run(system, folder):
    Image.fromarray(IMAGES[0, 0]).save(folder / "image.png")

    said = run(system, folder, *COMMANDS)

    assert said.count("$ ") >= len(COMMANDS)
    assert "llvmlite is not here" in said


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_server_answers_and_ends(system, folder):
    run(system, folder, TRAIN, CARD)
    serve = ("serve", "model.toml", "--port", "0")

    server = subprocess.Popen(
        command(system, serve), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    try:
        lines = []
        while not (found := re.search(r"http://[\d.:]+\d", lines[-1] if lines else "")):
            lines.append(server.stdout.readline())
            assert lines[-1], "".join(lines)
        for path in ("/v2/health/ready", "/v2", "/metrics"):
            with urllib.request.urlopen(found[0] + path, timeout=30) as answer:
                assert answer.status == 200
        server.send_signal(signal.SIGINT)
        rest = server.stdout.read()
        assert server.wait(60) == 0, rest
    finally:
        server.kill()
        server.stdout.close()
        server.wait()


NAMES = """
name: "\u732b" layer { name: "\u2192" type: "Input" top: "x" input_param { shape { dim: 1 } } }
"""


def test_characters_that_the_encoding_of_a_pipe_lacks_are_escaped(tmp_path):
    (tmp_path / "net.prototxt").write_text(NAMES, encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-m", "demitasse", "summary", "net.prototxt"], cwd=tmp_path, check=False,
        env={**os.environ, "PYTHONIOENCODING": "cp1252"}, capture_output=True, text=True,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("\\u732b")
    assert "\\u2192" in done.stdout

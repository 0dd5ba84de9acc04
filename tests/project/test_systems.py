"""Systems that the tests do not run on: what those lack is taken away, and a net is trained.

Their kernels, linkers and file systems are not imitated, nor are ``os.name`` and ``sys.platform``,
by which other libraries know where they are. What is shown is that nothing is needed that only
Linux on x86-64 has: neither the libraries that are installed there alone, nor functions of Python's
that others do not have. Linux on other processors lacks less than macOS does.
"""

import subprocess
import sys

import numpy as np
import pytest

from demitasse.examples import digits
from demitasse.examples.data import Split, write_databases

SYSTEMS = {
    "Darwin": {
        "machine": "arm64", "modules": ["llvmlite"],
        "functions": ["sched_getaffinity", "posix_fadvise", "posix_fallocate", "memfd_create"],
        "signals": ["SIGPWR", "SIGPOLL", "SIGSTKFLT", "SIGRTMIN"],
    },
    "Windows": {
        "machine": "AMD64",
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
import multiprocessing, os, platform, signal, subprocess, sys, tempfile
import numpy
name, taken, arguments = sys.argv[1], eval(sys.argv[2]), sys.argv[3:]
for module in taken["modules"]:
    sys.modules[module] = None
for function in taken["functions"]:
    if hasattr(os, function):
        delattr(os, function)
for function in taken["signals"]:
    if hasattr(signal, function):
        delattr(signal, function)
platform.system, platform.machine = lambda: name, lambda: taken["machine"]

from demitasse.backends.onednn.library import library
library._candidate_files = lambda: ["not-there"]
from demitasse.cli import main
main(arguments)
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


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_net_is_trained_and_its_run_taken_up_where_only_numpy_computes(system, folder):
    def run(*arguments):
        command = [sys.executable, "-c", CHILD, system, repr(SYSTEMS[system]), *arguments]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

    whole = run("train", "--solver", "solver.prototxt")
    first = (folder / "run_iter_4.caffemodel").read_bytes()
    again = run("train", "--solver", "solver.prototxt", "--snapshot", "run_iter_2.solverstate")

    assert (whole.returncode, again.returncode) == (0, 0), whole.stderr + again.stderr
    assert "slow path" in whole.stderr + whole.stdout
    assert (folder / "run_iter_4.caffemodel").read_bytes() == first

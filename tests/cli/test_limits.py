"""Limits of a process (ulimit, containers) end a command with an error that names the limit."""

import errno
import os
import shutil
import subprocess
import sys

import pytest
from needs import needs

from demitasse import Net
from demitasse.cli.errors import CliError, handle_errors

resource = pytest.importorskip("resource", reason="Windows has no such limits")

NET = """
layer { name: "d" type: "DummyData" top: "x" top: "l" dummy_data_param {
        shape { dim: 8 dim: 1 dim: 12 dim: 12 } shape { dim: 8 }
        data_filler { type: "gaussian" } data_filler { type: "constant" } } }
layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param {
        num_output: 16 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "ip" type: "InnerProduct" bottom: "c" top: "y" inner_product_param {
        num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "l" top: "loss" }
"""
SERVED = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 4 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 3 } }
"""
SOLVER = """
net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 4 snapshot: 4 snapshot_prefix: "s"
"""
TRAIN = [sys.executable, "-P", "-m", "demitasse", "train", "--solver", "s.prototxt"]
LARGEST = [sys.executable, "-P", "-m", "demitasse", "largest-batch", "net.prototxt",
           "--limit", "200MB", "--max-batch", "4"]  # fmt: skip
SERVE = [sys.executable, "-P", "-m", "demitasse", "serve", "served.prototxt",
         "--weights", "served.caffemodel", "--port", "0"]  # fmt: skip
MIB = 1 << 20

LIMIT = """
import os, resource, sys
limit, value, program, *arguments = sys.argv[1:]
resource.setrlimit(getattr(resource, limit), (int(value), int(value)))
os.execvp(program, [program, *arguments])
"""
LIMITED = [sys.executable, "-I", "-S", "-c", LIMIT]
"""Sets a limit in a process of its own: a fork beside threads, as of ``preexec_fn``, can block."""


@pytest.fixture
def run(tmp_path):
    """Run a command under a limit of the process; return its code and last line."""
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "s.prototxt").write_text(SOLVER)
    (tmp_path / "served.prototxt").write_text(SERVED)
    Net(SERVED, "TEST", device="numpy").save(tmp_path / "served.caffemodel")
    tmp_path.chmod(0o777)
    environment = {
        **os.environ,
        "DEMITASSE_THREADS": "2",
        "OMP_NUM_THREADS": "1",  # threads of NumPy's BLAS have stacks as large as the limit allows
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    def run_limited(command, name, value, before=()):
        limited = [*LIMITED, name, str(value), *before, *command]
        done = subprocess.run(
            limited, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
            timeout=300,
        )  # fmt: skip
        return done.returncode, (done.stderr.splitlines() or [""])[-1]

    return run_limited


@needs("limits of memory")
@pytest.mark.parametrize(
    ("command", "name", "value", "code", "option"),
    [
        (TRAIN, "RLIMIT_AS", 100 * MIB, 4, "ulimit -v"),
        (TRAIN, "RLIMIT_AS", 290 * MIB, 4, "ulimit -v"),
        (TRAIN, "RLIMIT_DATA", 64 * MIB, 4, "ulimit -d"),
        (TRAIN, "RLIMIT_FSIZE", 100, 1, "ulimit -f"),
        (TRAIN, "RLIMIT_STACK", MIB // 4, 0, ""),
        (TRAIN, "RLIMIT_STACK", MIB << 30, 0, ""),
        (LARGEST, "RLIMIT_NOFILE", 6, 1, "ulimit -n"),
        (SERVE, "RLIMIT_NOFILE", 6, 1, "ulimit -n"),
        (SERVE, "RLIMIT_AS", 100 * MIB, 4, "ulimit -v"),
    ],
)
def test_an_error_names_the_limit(run, command, name, value, code, option):
    ended, last = run(command, name, value)

    assert ended == code, last
    assert option in last
    assert not code or last.startswith("error: ")


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0 or not shutil.which("setpriv"),
    reason="the limit of threads does not hold for this user, who cannot become another",
)
@pytest.mark.parametrize(("threads", "command"), [(1, TRAIN), (2, TRAIN), (2, LARGEST), (3, SERVE)])
def test_so_does_one_for_lack_of_threads(run, threads, command):
    """As another user, who may read the files of this one."""
    rights = "-all,+dac_override,+dac_read_search"
    user = str(10_000 + os.getpid() % 50_000)  # the limit counts all processes of a user
    before = [
        "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups",
        f"--inh-caps={rights}", f"--ambient-caps={rights}", f"--bounding-set={rights}",
    ]  # fmt: skip

    ended, last = run(command, "RLIMIT_NPROC", threads, before)

    if threads == 2 and ended == 0:  # two are enough for some runs
        return
    assert ended in {1, 4}, last
    assert last.startswith("error: ")
    assert "threads" in last
    assert "ulimit -u" in last


@pytest.mark.parametrize(
    ("error", "code", "option"),
    [
        (RuntimeError("can't start new thread"), 4, "ulimit -u"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), 1, "ulimit -u"),
        (OSError(errno.EMFILE, "Too many open files"), 1, "ulimit -n"),
        (MemoryError(), 4, "ulimit -v"),
    ],
)
def test_errors_of_libraries_name_the_limit(error, code, option):
    with pytest.raises(CliError) as caught, handle_errors():
        raise error

    assert caught.value.exit_code == code
    assert option in caught.value.message


def test_other_errors_of_programs_are_unchanged():
    fault = RuntimeError("a fault")

    with pytest.raises(RuntimeError, match="a fault"), handle_errors():
        raise fault

"""How many cores are used: affinity, and the quotas of control groups of both versions."""

import subprocess
import sys

import pytest
from needs import needs

from demitasse.core import host


@pytest.fixture
def machine(tmp_path):
    """Return a function that writes files of a machine, and the folder they are in."""

    def write(**files):
        for path, text in files.items():
            place = tmp_path / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        return tmp_path

    return lambda files: write(**files)


GROUP = "sys/fs/cgroup/kubepods/pod1"
VERSION_1 = "sys/fs/cgroup/cpu,cpuacct/docker/c1"


@pytest.mark.parametrize(
    ("files", "allowed"),
    [
        pytest.param({}, None, id="no control groups"),
        pytest.param({"proc/self/cgroup": "0::/\n"}, None, id="none that says something"),
        pytest.param(
            {"proc/self/cgroup": "0::/kubepods/pod1\n", f"{GROUP}/cpu.max": "max 100000\n"},
            None,
            id="no limit",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/kubepods/pod1\n", f"{GROUP}/cpu.max": "150000 100000\n"},
            1.5,
            id="version 2",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/kubepods/pod1\n",
                f"{GROUP}/cpu.max": "max 100000\n",
                "sys/fs/cgroup/kubepods/cpu.max": "50000 100000\n",
            },
            0.5,
            id="of the group around it",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/../host/path\n",
                "sys/fs/cgroup/cpu.max": "300000 100000\n",
            },
            3.0,
            id="the container's own, under a path of the host",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/docker/c1\n1:memory:/docker/c1\n",
                f"{VERSION_1}/cpu.cfs_quota_us": "250000\n",
                f"{VERSION_1}/cpu.cfs_period_us": "100000\n",
            },
            2.5,
            id="version 1",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/docker/c1\n",
                f"{VERSION_1}/cpu.cfs_quota_us": "-1\n",
                f"{VERSION_1}/cpu.cfs_period_us": "100000\n",
            },
            None,
            id="version 1 without a limit",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/kubepods/pod1\n", f"{GROUP}/cpu.max": "much\n"},
            None,
            id="unreadable",
        ),
    ],
)
def test_a_quota_is_found(machine, files, allowed):
    assert host.quota(machine(files)) == allowed


@pytest.mark.parametrize(
    ("there", "allowed", "used"), [(8, None, 8), (8, 1.5, 2), (8, 0.3, 1), (2, 5.0, 2)]
)
def test_there_are_no_more_threads_than_can_run(monkeypatch, there, allowed, used):
    monkeypatch.setattr(host, "quota", lambda: allowed)
    monkeypatch.setattr(host, "affinity_cores", lambda: there)

    assert host.cores.__wrapped__() == used


PROGRAM = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from demitasse.backends.cpu.engine import thread_count
from demitasse.core.host import cores
from demitasse.io.data.threads import THREADS
print(cores(), thread_count(), THREADS)
"""


@needs("affinity")
def test_affinity_bounds_what_computes_and_what_decodes():
    import os

    plain = {k: v for k, v in os.environ.items() if k not in {"OMP_NUM_THREADS"}}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=plain
    )

    assert done.stdout.split() == ["1", "1", "1"]

"""Memory of the host: that of the machine, within the limits of control groups and ``ulimit``."""

import mmap
import sys

import pytest
from expect_error import expect_error
from needs import needs

from demitasse.core.host import host_memory, limited_to

MIB = 1 << 20

on_linux = needs("limits of memory")


@pytest.fixture
def machine(tmp_path):
    """A function that writes files of the kernel; a machine of 1000 MiB, 600 of them available."""

    def write(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    write(
        proc__meminfo=f"MemTotal: {1000 << 10} kB\nMemFree: {1 << 10} kB\n"
        f"MemAvailable: {600 << 10} kB\n",
        proc__self__status=f"Name:\tpython\nVmRSS:\t{50 << 10} kB\n",
    )
    return write


def group(path, limit, used, files=0):
    """Files of a control group of version 2."""
    return {
        f"{path}__memory.max": f"{limit}\n",
        f"{path}__memory.current": f"{used}\n",
        f"{path}__memory.stat": f"anon {used}\ninactive_file {files}\n",
    }


def test_every_system_says_how_much_there_is():
    assert host_memory().total > 256 * MIB


def test_without_limits_the_machine_counts(machine):
    found = host_memory(machine(proc__self__cgroup="0::/\n"))

    assert (found.total, found.free, found.process) == (1000 * MIB, 600 * MIB, 50 * MIB)


def test_a_control_group_limits_what_there_is(machine):
    files = group("sys__fs__cgroup__job", 300 * MIB, 100 * MIB)

    found = host_memory(machine(proc__self__cgroup="0::/job\n", **files))

    assert (found.total, found.free) == (300 * MIB, 200 * MIB)


def test_pages_of_unused_files_in_a_group_are_free(machine):
    files = group("sys__fs__cgroup__job", 300 * MIB, 290 * MIB, files=90 * MIB)

    found = host_memory(machine(proc__self__cgroup="0::/job\n", **files))

    assert found.free == 100 * MIB


def test_the_groups_around_a_group_limit_it_too(machine):
    files = {
        **group("sys__fs__cgroup__job", 200 * MIB, 150 * MIB),
        **group("sys__fs__cgroup__job__step", "max", 10 * MIB),
    }

    found = host_memory(machine(proc__self__cgroup="0::/job/step\n", **files))

    assert (found.total, found.free) == (200 * MIB, 50 * MIB)


def test_within_a_container_the_own_group_is_at_the_mount_point(machine):
    files = group("sys__fs__cgroup", 400 * MIB, 100 * MIB)

    found = host_memory(machine(proc__self__cgroup="0::/docker/abc\n", **files))

    assert (found.total, found.free) == (400 * MIB, 300 * MIB)


def test_control_groups_of_version_1(machine):
    place = "sys__fs__cgroup__memory__job"
    files = {
        f"{place}__memory.limit_in_bytes": f"{300 * MIB}\n",
        f"{place}__memory.usage_in_bytes": f"{120 * MIB}\n",
        f"{place}__memory.stat": f"total_inactive_file {20 * MIB}\n",
        "sys__fs__cgroup__memory__memory.limit_in_bytes": "9223372036854771712\n",
        "sys__fs__cgroup__memory__memory.usage_in_bytes": f"{900 * MIB}\n",
    }

    found = host_memory(machine(proc__self__cgroup="4:cpu,memory:/job\n1:pids:/\n", **files))

    assert (found.total, found.free) == (300 * MIB, 200 * MIB)


def test_a_full_group_leaves_nothing(machine):
    files = group("sys__fs__cgroup__job", 300 * MIB, 310 * MIB)

    assert host_memory(machine(proc__self__cgroup="0::/job\n", **files)).free == 0


def test_where_the_kernel_tells_nothing_the_size_of_the_machine_is_known(tmp_path):
    found = host_memory(tmp_path)

    assert found.total > 0 or sys.platform == "win32"
    assert (found.free, found.process) == (None, None)


@on_linux
def test_what_a_process_asks_for_beyond_its_limit_is_refused():
    with limited_to(64 * MIB), expect_error(OSError, mentions="[Errno 12]"):
        mmap.mmap(-1, 128 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    mmap.mmap(-1, 128 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()


@on_linux
def test_a_limit_of_the_process_counts_as_what_is_free():
    with limited_to(64 * MIB):
        free = host_memory().free

    assert 32 * MIB < free <= 64 * MIB

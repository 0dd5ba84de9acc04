"""No variable of OpenMP's changes a result: teams have the size that operations need."""

import itertools
import json
import os
import subprocess
import sys

import pytest

from demitasse.backends import onednn

pytestmark = pytest.mark.skipif(
    not onednn.status().loaded or not sys.platform.startswith("linux"),
    reason=f"needs oneDNN on Linux: {onednn.status()}",
)

CORES = "cores"
"""Not a variable: the cores that the process may use."""

VALUES = [
    ("OMP_DYNAMIC", "true"), ("OMP_DYNAMIC_ALL", "true"), ("OMP_THREAD_LIMIT", "1"),
    ("OMP_MAX_ACTIVE_LEVELS", "0"), ("OMP_NESTED", "true"), ("OMP_NUM_THREADS", "1"),
    ("OMP_NUM_THREADS", "7,1"), ("OMP_PROC_BIND", "true"), ("OMP_PROC_BIND", "spread"),
    ("OMP_PROC_BIND", "master"), ("OMP_PLACES", "{0}"), ("OMP_PLACES", "threads"),
    ("OMP_STACKSIZE", "16k"), ("OMP_STACKSIZE", "1000G"), ("GOMP_STACKSIZE", "16"),
    ("GOMP_SPINCOUNT", "0"), ("GOMP_CPU_AFFINITY", "0"), ("OMP_WAIT_POLICY", "passive"),
    ("OMP_SCHEDULE", "dynamic,1"), ("OMP_CANCELLATION", "true"), ("KMP_DYNAMIC_MODE", "x"),
    ("KMP_ALL_THREADS", "1"), ("KMP_STACKSIZE", "16k"), (CORES, "0"),
]  # fmt: skip
PAIRS = [
    pair for pair in itertools.combinations(VALUES, 2) if pair[0][0] != pair[1][0]
]  # a variable has one value
COMMON = [pair for pair in PAIRS if ("OMP_PROC_BIND", "true") in pair]  # turns our team off

PROGRAM = '''
import hashlib, json, os, sys, threading
import numpy as np
import demitasse as dm
import demitasse.layers, demitasse.backends.onednn.backend, demitasse.plan.plan
from demitasse.io.proto import NetParameter, parse_text
from demitasse.errors import DeviceError

NET = parse_text("""
force_backward: true
layer { name: "data" type: "Input" top: "data"
        input_param { shape { dim: 2 dim: 16 dim: 28 dim: 28 } } }
layer { name: "w" type: "Convolution" bottom: "data" top: "w"
        convolution_param { num_output: 32 kernel_size: 3 pad: 1
                            weight_filler { type: "xavier" } } }
layer { name: "r" type: "ReLU" bottom: "w" top: "w" }
layer { name: "p" type: "Pooling" bottom: "w" top: "p" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "c" type: "Convolution" bottom: "p" top: "c"
        convolution_param { num_output: 50 kernel_size: 5 weight_filler { type: "xavier" } } }
layer { name: "i" type: "InnerProduct" bottom: "c" top: "i"
        inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "s" type: "Softmax" bottom: "i" top: "s" }
""", NetParameter)

def digest():
    net, found = dm.Net(NET, phase="TRAIN", device="cpu", seed=3), hashlib.sha256()
    rng = np.random.default_rng(5)
    net.blobs["data"].data[...] = rng.standard_normal((2, 16, 28, 28), dtype=np.float32)
    for _ in range(2):
        net.forward()
        net.blobs["s"].diff[...] = net.blobs["s"].data
        net.backward()
        for blob in [net.blobs["s"], *(b for blobs in net.params.values() for b in blobs)]:
            found.update(blob.data.tobytes() + blob.diff.tobytes())
    return found.hexdigest()

def guarded():
    try:
        return digest()
    except DeviceError as error:
        return f"{error.code} {error.details}"

def beside_another():
    """Digest of a pass while another thread runs passes."""
    end = threading.Event()
    def work():
        while not end.is_set():
            digest()
    other = threading.Thread(target=work)
    other.start()
    try:
        return guarded()
    finally:
        end.set()
        other.join()

def child(variables):
    variables = dict(variables)
    cores = variables.pop("cores", None)
    if cores:
        os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[int(cores)]])
    if variables.pop("LOADED", None):
        os.environ.update(variables)
        import ctypes
        ctypes.CDLL("libgomp.so.1")
    os.environ.update(variables)
    return beside_another() if variables.pop("TWO", None) else guarded()

assert "libgomp" not in open("/proc/self/maps").read()  # the children load it
for variables in json.loads(sys.stdin.read()):
    read, write = os.pipe()
    if not os.fork():
        os.write(write, child(variables).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        print(said.read() or "nothing", os.wait()[1], flush=True)
'''


def results(tries: list) -> list[str]:
    """Return what processes with these variables compute, two threads each; and how they end."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMP_", "GOMP_", "KMP_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(tries), check=False,
        env={**inherited, "DEMITASSE_THREADS": "2"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = done.stdout.splitlines()
    assert len(found) == len(tries), done.stderr
    return found


@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param([[value] for value in VALUES], id="single"),
        pytest.param(COMMON, id="bound"),
        pytest.param(
            [p for p in PAIRS if p not in COMMON], id="others", marks=pytest.mark.exhaustive
        ),
    ],
)
def test_no_pair_of_variables_changes_a_bit(pairs):
    plain, *found = results([[], *pairs])

    assert plain.endswith(" 0")
    assert len(plain) == 66
    assert [(pair, said) for pair, said in zip(pairs, found, strict=True) if said != plain] == []


@pytest.mark.parametrize("bound", [[], [("OMP_PROC_BIND", "true")]])
def test_nor_if_two_threads_work_at_once(bound):
    two = [("TWO", "1"), *bound]

    found = results([two, *([*two, value] for value in VALUES[:5])])

    assert len({*found}) == 1
    assert found[0].endswith(" 0")


def test_a_runtime_that_was_loaded_before_gives_its_threads_or_an_error():
    loaded = [("LOADED", "1"), ("OMP_PROC_BIND", "true")]

    plain, dynamic, levels, limit = results(
        [loaded, *([*loaded, value] for value in (VALUES[0], VALUES[3], VALUES[2]))]
    )

    assert (dynamic, levels) == (plain, plain)
    assert "threads" in limit
    assert limit.endswith(" 0")

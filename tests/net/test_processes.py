"""Nets in child processes, however these are started, on all threads."""

import multiprocessing
import os
import subprocess
import sys

import numpy as np
import pytest
from needs import needs

from demitasse.io.data import write_database

SCRIPT = """
import multiprocessing, os, sys

import numpy as np

from demitasse import Net
from demitasse.io.proto import NetParameter, parse_text

TEXT = '''
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 8 dim: 16 dim: 24 dim: 24 } } }
layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param {
  num_output: 32 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "one" type: "Convolution" bottom: "c" top: "one" convolution_param {
  num_output: 64 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "ip" type: "InnerProduct" bottom: "one" top: "ip" inner_product_param {
  num_output: 10 weight_filler { type: "xavier" } } }
'''
NETS = []  # of the parent; a forked child has them, too


def made(device):
    net = Net(parse_text(TEXT, NetParameter), "TEST", device=device, seed=1)
    net.blobs["x"].data = np.random.default_rng(0).standard_normal((8, 16, 24, 24))
    return net


def output(net):
    net.forward()
    return net.blobs["ip"].data.tobytes()


def child(queue, device):
    queue.put([output(net) for net in [made(device), *NETS]])


if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    for device in sys.argv[2:]:
        NETS[:] = [made(device)]
        before = output(NETS[0])
        queue = context.Queue()
        process = context.Process(target=child, args=(queue, device))
        process.start()
        found = queue.get(timeout=60)
        process.join()
        assert set(found) == {before}, device
        assert output(NETS[0]) == before, device
"""


@pytest.mark.parametrize(
    "method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.exhaustive)]
)
def test_a_child_computes_what_its_parent_does(tmp_path, method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"there is no {method} here")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    done = subprocess.run(
        [sys.executable, script, method, "cpu", "numpy"],
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        timeout=120,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr


FORKED_DATA = """
import os, sys

from demitasse import Net

net = Net(sys.argv[1], "TEST", device="numpy")
net.forward()
child = os.fork()
net.forward()
os.write(1, f'{net.blobs["y"].data.tolist()}\\n'.encode())  # whole, whoever else writes
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def forked(net):
    done = subprocess.run(
        [sys.executable, "-c", FORKED_DATA, net],
        check=False,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


@needs("fork")
def test_a_forked_child_reads_on_where_its_parent_was(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for i in range(6):
        image.new("L", (2, 2), i).save(tmp_path / f"{i}.png")
    (tmp_path / "list").write_text("".join(f"{i}.png {i}\n" for i in range(6)))
    net = tmp_path / "net.prototxt"
    net.write_text(
        'layer { name: "d" type: "ImageData" top: "x" top: "y" '
        'image_data_param { source: "list" batch_size: 2 } }'
    )

    assert forked(net) == ["[2.0, 3.0]"] * 2


@needs("fork")
def test_a_forked_child_reads_on_in_its_parents_lmdb(tmp_path):
    images = ((np.full((1, 2, 2), i, np.uint8), i) for i in range(6))
    write_database(tmp_path / "data", images)
    net = tmp_path / "net.prototxt"
    net.write_text(
        'layer { name: "d" type: "Data" top: "x" top: "y" '
        'data_param { source: "data" backend: LMDB batch_size: 2 } }'
    )

    assert forked(net) == ["[2.0, 3.0]"] * 2


DURING_COMPILATIONS = """
import signal, threading

from demitasse.backends.kernels.language import compiler

text, begun = compiler._text, threading.Semaphore(0)


def slow(name, write):
    begun.release()
    threading.Event().wait(0.1)
    return text(name, write)


NETS[:] = made("cpu"), made("cpu")
compiler._text = slow
thread = threading.Thread(target=output, args=NETS[:1])
thread.start()
children = []
for _ in range(3):
    begun.acquire(timeout=30)
    process = os.fork()
    if not process:
        signal.alarm(30)  # ends the child
        output(NETS[1])
        os._exit(0)
    children.append(process)
assert [os.waitpid(process, 0)[1] for process in children] == [0, 0, 0]
thread.join()
"""


@needs("fork")
def test_children_forked_during_compilations_compile_too(tmp_path):
    script = SCRIPT.partition("def child")[0] + DURING_COMPILATIONS
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        check=False,
        timeout=300,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr

"""Which pages of oneDNN's code stay in this process's memory."""

import ctypes
import inspect
import mmap
import re
import subprocess
import sys
from pathlib import Path

import pytest
from needs import needs

from demitasse import Net
from demitasse.backends.onednn import status
from demitasse.backends.onednn.library import library as pages
from demitasse.backends.onednn.library.library import load
from demitasse.io.proto import NetParameter, parse_text

pytestmark = [
    needs("/proc"),
    pytest.mark.skipif(not status().loaded, reason=str(status())),
]


def code_in_memory(function):
    """Bytes of the code around a function that are in this process's memory."""
    address, inside = ctypes.cast(function, ctypes.c_void_p).value, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        area = re.match(r"([0-9a-f]+)-([0-9a-f]+) r-xp ", line)
        if area:
            first, last = (int(number, 16) for number in area.groups())
            inside = first <= address < last
        elif inside and line.startswith("Rss:"):
            return int(line.split()[1]) << 10
    return 0


def test_what_loading_has_run_is_let_go_of():
    code = (
        "import ctypes, re; from pathlib import Path\n"
        f"{inspect.getsource(code_in_memory)}"
        f"plain = code_in_memory(ctypes.CDLL({status().path!r}).dnnl_version)\n"
        "from demitasse.backends.onednn.library.library import load\n"
        "print(plain, code_in_memory(load().dnnl_version))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    plain, ours = map(int, done.stdout.split())

    assert ours < plain / 4


def test_the_library_works_as_before():
    version = load().dnnl_version

    pages.drop_code_pages(version)

    assert version().contents.major == 3


def test_pages_that_differ_from_their_file_are_not_let_go_of(tmp_path):
    file = tmp_path / "code"
    file.write_bytes(bytes(2 * mmap.PAGESIZE))
    with file.open("r+b") as opened:
        code = mmap.mmap(opened.fileno(), 0, flags=mmap.MAP_PRIVATE)
    first = ctypes.addressof(ctypes.c_char.from_buffer(code))
    last = first + 2 * mmap.PAGESIZE
    assert not code[0]
    assert pages._as_in_file(first, last)

    code[mmap.PAGESIZE] = 1

    assert not pages._as_in_file(first, last)


def test_what_preparing_a_net_has_run_is_let_go_of_once(monkeypatch):
    left = []
    monkeypatch.setattr(pages, "drop_code_pages", left.append)
    text = """
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 4 } } }
        layer { name: "y" type: "TanH" bottom: "x" top: "y" }
    """
    net = Net(parse_text(text, NetParameter), "TEST", device="cpu")

    net.forward()
    net.blobs["x"].reshape(2, 4)
    net.forward()

    assert len(left) == 1

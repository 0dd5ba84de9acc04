"""What ``import demitasse`` promises: its names, its version, and that it costs nothing."""

import json
import subprocess
import sys
from importlib.metadata import version

import pytest
from expect_error import expect_error

import demitasse
import demitasse.io.data
from demitasse import errors

HEAVY = ["PIL", "cupy", "google.protobuf", "h5py", "lmdb", "numpy", "sklearn"]


def loaded_after(statement: str) -> set[str]:
    """The modules of a fresh interpreter after one statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_import_loads_no_library():
    loaded = loaded_after("import demitasse")

    assert not loaded & set(HEAVY)


def test_a_device_on_the_cpu_loads_no_optional_library():
    loaded = loaded_after("import demitasse; demitasse.Device('numpy')")

    assert not loaded & {"PIL", "cupy", "h5py", "lmdb", "sklearn"}


MOST_MODULES = 200
"""Modules of the package that a small net needs on the cpu: each takes about a millisecond."""


def test_a_small_net_imports_a_third_of_the_package(tmp_path):
    path = tmp_path / "weights.caffemodel"
    text = """
        layer { name: 'x' type: 'Input' top: 'x'
          input_param { shape { dim: 1 dim: 1 dim: 28 dim: 28 } } }
        layer { name: 'c' type: 'Convolution' bottom: 'x' top: 'c'
          convolution_param { num_output: 20 kernel_size: 5 } }
        layer { name: 'p' type: 'Pooling' bottom: 'c' top: 'p'
          pooling_param { kernel_size: 2 stride: 2 } }
        layer { name: 'i' type: 'InnerProduct' bottom: 'p' top: 'i'
          inner_product_param { num_output: 10 } }
        layer { name: 'r' type: 'ReLU' bottom: 'i' top: 'i' }
        layer { name: 's' type: 'Softmax' bottom: 'i' top: 's' }
    """.replace("\n", " ")

    loaded = loaded_after(
        "import demitasse; from demitasse.io.proto import NetParameter, parse_text;"
        f"net = demitasse.Net(parse_text({text!r}, NetParameter), 'TEST', device='cpu');"
        f"net.save({str(path)!r}); net.load({str(path)!r}); net.forward()"
    )

    own = [name for name in loaded if name.partition(".")[0] == "demitasse"]
    assert len(own) <= MOST_MODULES


def test_a_net_that_is_given_its_input_loads_nothing_that_reads_data():
    text = """layer { name: 'x' type: 'Input' top: 'x' input_param { shape { dim: 1 } } }"""

    loaded = loaded_after(
        "import demitasse; from demitasse.io.proto import NetParameter, parse_text;"
        f"demitasse.Net(parse_text({text!r}, NetParameter), 'TEST', device='numpy').forward()"
    )

    unused = ("images", "transform", "prefetch", "sources.source")
    assert not [m for m in loaded if m.startswith(tuple(f"demitasse.io.data.{m}" for m in unused))]


def test_a_net_loads_no_openssl():
    text = """layer { name: 'x' type: 'Input' top: 'x' input_param { shape { dim: 1 } } }"""

    loaded = loaded_after(
        "import demitasse; from demitasse.io.proto import NetParameter, parse_text;"
        f"demitasse.Net(parse_text({text!r}, NetParameter), 'TEST', device='cpu').forward()"
    )

    ours = loaded - loaded_after("import numpy")
    assert not ours & {"_hashlib", "hashlib", "hmac", "secrets"}


@pytest.mark.parametrize("name", demitasse.io.data.__all__)
def test_public_name_of_the_data_path_resolves(name):
    assert getattr(demitasse.io.data, name) is not None
    assert name in dir(demitasse.io.data)


@pytest.mark.parametrize("name", demitasse.__all__)
def test_public_name_resolves(name):
    assert getattr(demitasse, name) is not None
    assert name in dir(demitasse)


def test_dir_lists_public_names_alone():
    assert set(dir(demitasse)) == set(demitasse.__all__)


def test_a_seed_is_set_for_the_process():
    demitasse.seed(7)
    try:
        assert demitasse.settings.get("seed") == 7
    finally:
        demitasse.seed(None)


def test_every_error_is_public():
    assert set(errors.__all__) <= set(demitasse.__all__)


def test_unknown_name_is_an_attribute_error():
    with expect_error(AttributeError, mentions="'Nett'"):
        _ = demitasse.Nett


def test_unknown_name_of_the_data_path_is_an_attribute_error():
    with expect_error(AttributeError, mentions="'read_imag'"):
        _ = demitasse.io.data.read_imag


def test_version_is_the_installed_one():
    assert demitasse.__version__ == version("demitasse")

"""What we pass to cuBLAS, against the headers of NVIDIA's wheel, which need no GPU."""

import re
import sys
from ctypes import c_char_p, c_int, c_longlong, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from demitasse.backends.cupy.library import cublas

CONSTANTS = {
    "CUBLAS_DEFAULT_MATH": cublas.DEFAULT_MATH,
    "CUBLAS_TF32_TENSOR_OP_MATH": cublas.TF32_MATH,
    "CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION": cublas.NO_NARROW_SUMS,
    "CUBLAS_COMPUTE_32F": cublas.COMPUTE_FLOAT,
    "CUBLAS_GEMM_DEFAULT": cublas.ANY_ALGORITHM,
    "CUBLAS_STATUS_SUCCESS": 0,
    "CUBLAS_OP_N": 0,
    "CUBLAS_OP_T": 1,
}

WORDS = {"int": c_int, "long long int": c_longlong, "long long": c_longlong, "size_t": c_size_t}
HANDLES = {"cublasHandle_t", "cudaStream_t"}


@cache
def header():
    """The text of ``cublas_api.h`` without comments, or None where it is not installed."""
    folders = [Path(folder, "nvidia") for folder in sys.path if folder]
    found = [file for folder in folders for file in folder.glob("*/include/cublas_api.h")]
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", found[0].read_text(), flags=re.S) if found else None


@pytest.fixture
def text():
    if header() is None:
        pytest.skip("no cublas_api.h: pip install nvidia-cublas")
    return header()


class Library:
    """Keeps the types that functions are declared with."""

    def __init__(self):
        self.functions = {}

    def __getattr__(self, name):
        return self.functions.setdefault(name, SimpleNamespace(argtypes=None, restype=None))


def declared():
    library = Library()
    cublas.Cublas(library)
    return library.functions


def kind(argument):
    """The ctypes type of an argument in C; enumerations are ints."""
    if "*" in argument:
        return c_void_p
    word = " ".join(argument.split()[:-1]).removeprefix("const ")
    return c_void_p if word in HANDLES else WORDS.get(word, c_int)


@pytest.mark.parametrize("name", declared())
def test_arguments_are_those_of_the_header(name, text):
    function = declared()[name]
    found = re.search(rf"([\w ]+?[ *]+)(?:CUBLASWINAPI )?{name}\(([^)]*)\);", text)

    result, arguments = found.groups()
    expected = [kind(argument) for argument in arguments.split(",")]

    assert function.argtypes == expected
    assert function.restype is (c_char_p if "char*" in result else c_int)


@pytest.mark.parametrize("name", CONSTANTS)
def test_numbers_are_those_of_the_header(name, text):
    [number] = re.findall(rf"\b{name}\s*=\s*(-?\d+)", text)

    assert CONSTANTS[name] == int(number)


def test_the_declared_functions_are_those_that_are_called():
    source = Path(cublas.__file__).read_text()

    assert {name for name in declared() if name not in source} == {
        f"cublas{letter}gemm{ending}" for letter in "SD" for ending in ("_v2", "StridedBatched")
    }

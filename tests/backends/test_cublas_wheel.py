"""What we pass to cuBLAS and cuBLASLt, against the headers of NVIDIA's wheel, which need no GPU."""

import re
import sys
from ctypes import (
    c_char_p,
    c_float,
    c_int,
    c_int64,
    c_longlong,
    c_size_t,
    c_uint64,
    c_void_p,
    sizeof,
)  # fmt: skip
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from demitasse.backends.cupy.library import cublas, cublas_lt

CONSTANTS = {
    "CUBLAS_DEFAULT_MATH": cublas.DEFAULT_MATH,
    "CUBLAS_TF32_TENSOR_OP_MATH": cublas.TF32_MATH,
    "CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION": cublas.NO_NARROW_SUMS,
    "CUBLAS_COMPUTE_32F": cublas.COMPUTE_FLOAT,
    "CUBLAS_COMPUTE_32F_FAST_TF32": cublas_lt.COMPUTE_TF32,
    "CUBLAS_GEMM_DEFAULT": cublas.ANY_ALGORITHM,
    "CUBLAS_STATUS_SUCCESS": 0,
    "CUBLAS_OP_N": 0,
    "CUBLAS_OP_T": 1,
}

LT_CONSTANTS = {
    "CUBLASLT_MATMUL_DESC_TRANSA": cublas_lt.TRANSPOSE_FIRST,
    "CUBLASLT_MATMUL_DESC_TRANSB": cublas_lt.TRANSPOSE_SECOND,
    "CUBLASLT_MATMUL_DESC_EPILOGUE": cublas_lt.EPILOGUE,
    "CUBLASLT_MATMUL_DESC_BIAS_POINTER": cublas_lt.BIAS_POINTER,
    "CUBLASLT_EPILOGUE_BIAS": cublas_lt.BIAS,
    "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES": cublas_lt.MOST_WORKSPACE,
    "CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK": cublas_lt.REDUCTIONS,
    "CUBLASLT_REDUCTION_SCHEME_INPLACE": cublas_lt.WIDE_REDUCTIONS & 1,
    "CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE": cublas_lt.WIDE_REDUCTIONS & 2,
}

WORDS = {
    "int": c_int,
    "uint64_t": c_uint64,
    "int64_t": c_int64,
    "float": c_float,
    "long long int": c_longlong,
    "long long": c_longlong,
    "size_t": c_size_t,
}
HANDLES = {"cublasHandle_t", "cudaStream_t"} | {
    f"cublasLt{kind}_t" for kind in ("Handle", "MatmulDesc", "MatrixLayout", "MatmulPreference")
}


@cache
def header(name):
    """The text of a header without comments, or None where it is not installed."""
    folders = [Path(folder, "nvidia") for folder in sys.path if folder]
    found = [file for folder in folders for file in folder.glob(f"*/include/{name}")]
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", found[0].read_text(), flags=re.S) if found else None


def text_of(name):
    if header(name) is None:
        pytest.skip(f"no {name}: pip install nvidia-cublas")
    return header(name)


@pytest.fixture
def text():
    return text_of("cublas_api.h")


@pytest.fixture
def text_of_lt():
    return text_of("cublasLt.h")


class Library:
    """Keeps the types that functions are declared with."""

    def __init__(self):
        self.functions = {}

    def __getattr__(self, name):
        return self.functions.setdefault(name, SimpleNamespace(argtypes=None, restype=None))


def declared(kind=cublas.Cublas):
    library = Library()
    kind(library)
    return library.functions


def kind(argument):
    """The ctypes type of an argument in C; enumerations are ints."""
    if "*" in argument or "[" in argument:
        return c_void_p
    word = " ".join(argument.split()[:-1]).removeprefix("const ")
    return c_void_p if word in HANDLES else WORDS.get(word, c_int)


def check_arguments(name, function, text):
    found = re.search(rf"([\w ]+?[ *]+)(?:CUBLASWINAPI )?{name}\(([^)]*)\);", text)

    result, arguments = found.groups()
    expected = [kind(argument) for argument in arguments.split(",")]

    assert function.argtypes == expected
    assert function.restype is (c_char_p if "char*" in result else c_int)


@pytest.mark.parametrize("name", declared())
def test_arguments_are_those_of_the_header(name, text):
    check_arguments(name, declared()[name], text)


@pytest.mark.parametrize("name", declared(cublas_lt.CublasLt))
def test_arguments_of_cublas_lt_are_those_of_its_header(name, text_of_lt):
    check_arguments(name, declared(cublas_lt.CublasLt)[name], text_of_lt)


@pytest.mark.parametrize("name", LT_CONSTANTS)
def test_numbers_of_cublas_lt_are_those_of_its_header(name, text_of_lt):
    [number] = re.findall(rf"\b{name}\s*=\s*(\d+)", text_of_lt)

    assert LT_CONSTANTS[name] == int(number)


def test_a_result_of_the_heuristics_is_that_of_the_header(text_of_lt):
    algorithm, fields = (
        re.search(rf"typedef struct {{([^}}]*)}} {name};", text_of_lt)[1].split(";")
        for name in ("cublasLtMatmulAlgo_t", "cublasLtMatmulHeuristicResult_t")
    )

    assert [field.split() for field in algorithm[:-1]] == [["uint64_t", "data[8]"]]
    assert [field.split()[0] for field in fields[:-1]] == [
        "cublasLtMatmulAlgo_t", "size_t", "cublasStatus_t", "float", "int",
    ]  # fmt: skip
    assert [kind for _, kind in cublas_lt.Heuristic._fields_] == [
        c_uint64 * 8, c_size_t, c_int, c_float, c_int * 4,
    ]  # fmt: skip
    assert sizeof(cublas_lt.Heuristic) == 96


@pytest.mark.parametrize("name", CONSTANTS)
def test_numbers_are_those_of_the_header(name, text):
    [number] = re.findall(rf"\b{name}\s*=\s*(-?\d+)", text)

    assert CONSTANTS[name] == int(number)


def test_the_declared_functions_are_those_that_are_called():
    source = Path(cublas.__file__).read_text()

    assert {name for name in declared() if name not in source} == {
        f"cublas{letter}gemm{ending}" for letter in "SD" for ending in ("_v2", "StridedBatched")
    }

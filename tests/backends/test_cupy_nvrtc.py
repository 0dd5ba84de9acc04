"""The kernels compile for a GPU: NVIDIA's run-time compiler needs neither a driver nor a GPU."""

import re
from pathlib import Path

import pytest
from cubin import local_bytes
from expect_error import expect_error
from nvrtc import machine_code

from demitasse.backends.cupy.library.engine import FAMILIES, MOST_THREADS, TILE, options, source
from demitasse.backends.cupy.sums import PACKS

HOPPER = "sm_90"
OTHERS = ("sm_75", "sm_80", "sm_100", "sm_120")


def names(text: str) -> list[str]:
    """The kernels that a source defines."""
    return re.findall(r"^(?:KERNEL |UPDATE\()(\w+)", text, re.MULTILINE)


def spilled(code: bytes) -> dict[str, int]:
    """Bytes of local memory of the kernels that have some: registers do not hold what they need."""
    return {name: size for name, size in local_bytes(code).items() if size}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "half", "bfloat16"])
@pytest.mark.parametrize("wide", [False, True], ids=["32 bits", "64 bits"])
def test_a_family_compiles(family, dtype, wide):
    text = source(family)

    code = machine_code(text, options(dtype, wide=wide), HOPPER)

    assert names(text)
    assert [name for name in names(text) if f".text.{name}\0".encode() not in code] == []
    assert spilled(code) == {}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("architecture", OTHERS)
@pytest.mark.parametrize("dtype", ["float32", "half", "bfloat16"])
def test_a_family_compiles_for_older_and_newer_gpus(family, architecture, dtype):
    code = machine_code(source(family), options(dtype, wide=False), architecture)

    assert spilled(code) == {}


SPILLING = """
extern "C" __global__ void spills(float* x, int n) {
  float kept[200];
  for (int i = 0; i < 200; ++i) kept[i] = x[i * n];
  __syncthreads();
  for (int i = 0; i < 200; ++i) x[(i * 7 + n) % 200] = kept[(i * n) % 200];
}
"""


def test_spilled_registers_would_be_seen():
    assert spilled(machine_code(SPILLING, (), HOPPER)) == {"spills": 800}


def test_faults_would_be_seen():
    with expect_error(AssertionError, mentions="expected a"):
        machine_code(source("pool") + "KERNEL broken( {", options("float32", wide=False), HOPPER)


def test_the_sources_agree_on_the_size_of_a_block():
    assert f"#define MOST_THREADS {MOST_THREADS}\n" in source("conv")
    assert f"#define PACKS {PACKS}\n" in source("sums")
    assert f"#define SIDE {TILE}\n" in source("storage")


def test_every_source_is_a_family():
    folder = Path(__file__).parents[2] / "demitasse" / "backends" / "cupy" / "kernels"

    assert {file.stem for file in folder.glob("*.cu")} == set(FAMILIES)

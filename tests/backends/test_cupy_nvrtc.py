"""The kernels compile for a GPU: NVIDIA's run-time compiler needs neither a driver nor a GPU."""

import re
from pathlib import Path

import pytest
from nvrtc import machine_code

from demitasse.backends.cupy.library.sources import FAMILIES, MOST_THREADS, options, source

HOPPER = "sm_90"
OTHERS = ("sm_75", "sm_80", "sm_100", "sm_120")


def names(text: str) -> list[str]:
    """The kernels that a source defines."""
    return re.findall(r"^(?:KERNEL |UPDATE\()(\w+)", text, re.MULTILINE)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("wide", [False, True], ids=["32 bits", "64 bits"])
def test_a_family_compiles(family, dtype, wide):
    text = source(family)

    code = machine_code(text, options(dtype, wide=wide), HOPPER)

    assert names(text)
    assert [name for name in names(text) if f".text.{name}\0".encode() not in code] == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("architecture", OTHERS)
def test_a_family_compiles_for_older_and_newer_gpus(family, architecture):
    assert machine_code(source(family), options("float32", wide=False), architecture)


def test_faults_would_be_seen():
    with pytest.raises(AssertionError, match="expected a"):
        machine_code(source("pool") + "KERNEL broken( {", options("float32", wide=False), HOPPER)


def test_the_sources_agree_on_the_size_of_a_block():
    assert f"#define MOST_THREADS {MOST_THREADS}\n" in source("conv")


def test_every_source_is_a_family():
    folder = Path(__file__).parents[2] / "demitasse" / "backends" / "cupy" / "kernels"

    assert {file.stem for file in folder.glob("*.cu")} == set(FAMILIES)

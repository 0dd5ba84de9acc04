"""Decisions of the Steps are values: families of the library's code, what a pass may do."""

import importlib
import pkgutil

import pytest

from demitasse.backends.onednn import steps as package
from demitasse.backends.onednn.library.primitive import CodeFamily
from demitasse.backends.onednn.step import OnednnStep

FAMILIES = {
    "REFERENCE": ["ref:any", "ref_shuffle:any"],
    "SIMPLE": ["simple_nchw:any", "simple_nhwc:any", "ncsp_bnorm:any", "nspc_bnorm:any"],
    "GEMM": ["x64:gemm:jit", "gemm:jit", "ip:any+gemm:jit", "conv:any+x64:gemm:jit"],
    "BRGEMM": [
        "brgconv:avx512_core", "brgconv_1x1:avx2", "brgconv_strided:avx2", "brgemm:avx512_core",
        "brg_conv:avx512_core+brgconv_strided:avx512_core",
    ],
    "DIRECT": ["jit:avx512_core", "jit_1x1:avx2", "jit_dw:avx512_core", "jit:uni"],
    "OTHER": ["bnorm_jit:avx2", "bnorm_tbb_jit:sse41", "brdgmm_dw:avx512_core"],
}  # fmt: skip
"""Names that oneDNN gives its code."""


def all_steps(base=OnednnStep):
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    for step in base.__subclasses__():
        yield step
        yield from all_steps(step)


@pytest.mark.parametrize("family", CodeFamily, ids=lambda one: one.name)
def test_a_name_has_a_family(family):
    assert {CodeFamily.of(name) for name in FAMILIES[family.name]} == {family}


@pytest.mark.parametrize("step", dict.fromkeys(all_steps()), ids=lambda one: one.__name__)
def test_a_step_that_does_more_than_its_calls_states_what_its_passes_may_do(step):
    if step.forward is not OnednnStep.forward:
        assert step.deferrable is not OnednnStep.deferrable
    if step.backward is not OnednnStep.backward and not step.own_backward:
        assert step.backward_replayable is not OnednnStep.backward_replayable

"""Kernels and the team for the systems that the tests do not run on; ``--targets`` for all."""

from operator import index

import pytest
from stages import exported
from targets import TARGETS, Recorded, check_for, vectors_on_the_stack

from demitasse.backends.kernels import elementwise
from demitasse.backends.kernels.language import compiler, target
from demitasse.backends.kernels.language.team_code import FUNCTIONS, write_team
from demitasse.backends.kernels.products import ROWS
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.winograd.convolution import product_kernel

EACH = pytest.mark.parametrize(
    ("architecture", "system", "processor"),
    [(architecture, *each) for architecture, all_ in TARGETS.items() for each in all_],
)


@EACH
def test_the_team_is_linked_for_every_system(architecture, system, processor):
    check_for(architecture, system, processor, "team", write_team, FUNCTIONS)


def large_frame(k):
    """Write that numbers are kept on the stack, over several pages."""
    [at] = k.arguments
    stack = k.scratch(1000)
    for source, to in ((at, stack), (stack, at)):
        with k.loop(1000) as loop:
            k.store(k.load(source + loop.i * k.vector_bytes), to + loop.i * k.vector_bytes)


@pytest.mark.parametrize(("architecture", "widths"), [("x86_64", [8, 16]), ("aarch64", [4])])
def test_kernels_are_linked_for_every_system(monkeypatch, architecture, widths):
    recorded = Recorded(architecture)
    monkeypatch.setattr(compiler, "linked", recorded)
    monkeypatch.setattr(compiler, "_known", {})

    for width in widths:
        for function, arrays in (("gelu", 1), ("tanh_slope", 2)):
            kernel = elementwise.Elementwise([(function, ())], arrays, 100, Tuning(width))
            index(kernel._kernels)
        index(product_kernel(width, 1, [2]))
        exported("large_frame", width, large_frame)
        compiler._known.clear()

    assert not recorded.faults
    assert recorded.count >= 3 * 4 * len(widths)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(
    ("architecture", "processor", "width", "vectors"),
    [(*each, width, vectors)
     for width, each in {4: ("aarch64", "neoverse-n1"), 8: ("x86_64", "x86-64-v3"),
                         16: ("x86_64", "znver4")}.items() for vectors in ROWS[width]],
)  # fmt: skip
def test_sums_of_products_stay_in_registers(
    monkeypatch, architecture, processor, width, vectors, adds
):
    modules = []
    monkeypatch.setattr(compiler, "linked", lambda *module: modules.append(module) or {})
    monkeypatch.setattr(compiler, "_known", {})

    with pytest.raises(KeyError):  # nothing is linked
        index(product_kernel(width, vectors, [ROWS[width][vectors]], adds=adds))

    [(name, write, *_)] = modules
    assert not vectors_on_the_stack(architecture, processor, name, write)


def test_a_register_of_the_system_is_noticed():
    """What the checks above are good for: without the feature, x18 is used."""
    monkeypatch = pytest.MonkeyPatch()
    known = target.ARCHITECTURES["aarch64"]
    with monkeypatch.context() as patch:
        patch.setitem(target.ARCHITECTURES, "aarch64", known._replace(features=""))
        with pytest.raises(AssertionError):
            check_for("aarch64", "darwin", "apple-m1", "many", many_words, ("many",))
    check_for("aarch64", "darwin", "apple-m1", "many", many_words, ("many",))


def many_words(module):
    """Write a kernel that needs all registers of integers."""
    from demitasse.backends.kernels.language.kernel import Kernel

    k = Kernel(module, "many", 1, 4)
    [at] = k.arguments
    words = [k.load_word(at + 8 * place) for place in range(40)]
    for place, word in enumerate(words):
        k.store_word(word * word + words[-1 - place], at + 8 * place)
    k.done()

"""ReLU behind a convolution of the library's: NaN stays, and no zero is negative."""

import numpy as np
import pytest

from demitasse import Net
from demitasse.backends.arrays import aligned
from demitasse.backends.onednn import status
from demitasse.backends.onednn.library.constants import Algorithm, Arg, Pass, Query
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import dims
from demitasse.backends.onednn.library.library import load
from demitasse.backends.onednn.library.primitive import CodeFamily, Primitive, lent_attributes
from demitasse.backends.onednn.steps.activation import RECTIFIER, rectifying
from demitasse.io.proto import NetParameter, parse_text

pytestmark = pytest.mark.skipif(not status().loaded, reason=str(status()))

ADDED = pytest.mark.parametrize("added", [False, True], ids=["alone", "behind a sum"])
WIDE = status().instruction_set.startswith("AVX") if status().loaded else False


class Convolution:
    """One of 32 channels to 24, with windows of a size, in the layouts that the library likes."""

    def __init__(self, size, added):
        self.engine, self.size = Engine(load()), size
        self.shapes = (2, 32, 9, 11), (24, 32, size, size), (2, 24, 9, 11)
        plain = self.described(self.engine.attributes)
        self.x, self.w, self.y = plain.layouts(Query.SRC, Query.WEIGHTS, Query.DST)
        self.plain, self.other = plain, self.y.handle if added else None

    def described(self, attributes):
        engine, pad = self.engine, dims((self.size // 2,) * 2)
        x, w, y = (engine.any(shape) for shape in self.shapes)
        bias = engine.plain((24,)).handle
        return engine.describe(
            "convolution_forward", Pass.INFERENCE, Algorithm.CONVOLUTION, x, w, bias, y,
            dims((1, 1)), dims((0, 0)), pad, pad, attributes=attributes,
        )  # fmt: skip

    def run(self, description, fixed):
        """Return what it makes of numbers among which are NaN and infinities."""
        rng = np.random.default_rng(5)
        bias = self.engine.plain((24,))
        layouts = {Arg.SRC: self.x, Arg.WEIGHTS: self.w, Arg.BIAS: bias, Arg.DST: self.y}
        if self.other:
            layouts[Arg.ADDED] = self.y
        buffers = {role: aligned(layout.size) for role, layout in layouts.items()}
        for buffer in buffers.values():
            buffer[:] = rng.normal(size=buffer.size)
        buffers[Arg.SRC][:9:4] = np.nan, np.inf, -np.inf
        uses = [(role, layout.handle) for role, layout in layouts.items()]
        uses += [(role, descriptor) for role, descriptor, _ in fixed]
        primitive = Primitive(self.engine.stream, description, uses)
        for role, buffer in [*buffers.items(), *((role, buffer) for role, _, buffer in fixed)]:
            primitive.bind(primitive.place(role), buffer)
        primitive.run()
        return buffers[Arg.DST]

    def rectifying(self):
        return rectifying(self.engine, self.described, self.plain, 4, self.other)


@ADDED
@pytest.mark.parametrize("size", [1, 3])
def test_a_slope_of_negative_zero_gives_the_bits_of_the_functions(size, added):
    convolution = Convolution(size, added)
    library, other = convolution.engine.library, convolution.other

    found = convolution.run(*convolution.rectifying())

    with lent_attributes(library, other=other, functions=RECTIFIER) as attributes:
        expected = convolution.run(convolution.described(attributes), [])
    assert np.isnan(found).any()
    np.testing.assert_array_equal(found, expected)
    assert not np.signbit(found[~np.isnan(found)]).any()


@ADDED
@pytest.mark.skipif(not WIDE, reason="the library's code for processors without AVX")
def test_the_slope_is_an_argument_of_the_same_code(added):
    convolution = Convolution(1, added)

    description, fixed = convolution.rectifying()

    assert description.family is convolution.plain.family
    [(role, _, buffer)] = fixed
    assert role == (Arg.SECOND_SLOPE if added else Arg.SLOPE)
    assert buffer.tobytes() == np.float32(-0.0).tobytes()


def test_where_the_library_takes_no_slope_functions_follow():
    convolution = Convolution(1, added=False)
    plain = convolution.described(convolution.engine.attributes)
    plain.family = CodeFamily.OTHER

    description, fixed = rectifying(convolution.engine, convolution.described, plain, 4)

    assert fixed == []
    assert not np.signbit(np.nan_to_num(convolution.run(description, fixed))).any()


def test_a_net_rectifies_behind_a_convolution_and_a_sum():
    text = """
    input: "x" input_shape { dim: 2 dim: 16 dim: 6 dim: 7 }
    layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param {
      num_output: 16 kernel_size: 1 weight_filler { type: "gaussian" std: 1 } } }
    layer { name: "s" type: "Eltwise" bottom: "c" bottom: "x" top: "s" }
    layer { name: "r" type: "ReLU" bottom: "s" top: "s" }
    """
    x = np.random.default_rng(3).normal(size=(2, 16, 6, 7)).astype(np.float32)
    x[1, 2, 3, 4] = np.nan
    message = parse_text(text, NetParameter)
    planned, portable = (
        Net(message, "TEST", device="cpu", seed=1, optimize=lowered, keep_blobs="outputs")
        for lowered in (True, False)
    )

    found, expected = (net.predict(x)["s"] for net in (planned, portable))

    assert np.isnan(found[1, :, 3, 4]).all()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

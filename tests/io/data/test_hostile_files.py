"""Small files that would cost much, and files that never end."""

import io
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Net
from demitasse.errors import ConfigError, DataError, ErrorCode, NetError, PrototxtError
from demitasse.io.data.images.codecs import read_image
from demitasse.io.proto import NetParameter, parse_text
from demitasse.plan.plan import LONGEST

MANY = 200_000


@pytest.mark.parametrize(
    "text",
    [
        f"force_backward: {'1' * MANY}",
        f"force_backward: {'1e+1' * MANY}",
        'name: "' + r"\n" * MANY + '"',
        "#\n" * MANY,
    ],
    ids=["number", "powers", "escapes", "comments"],
)
def test_a_long_token_takes_little_more_memory_than_its_text(text):
    tracemalloc.start()
    with suppress(PrototxtError):
        parse_text(text, NetParameter)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert most < 16 * len(text) + (1 << 20)


@pytest.mark.parametrize(
    "text",
    [
        "x " * MANY,
        "}" * MANY,
        pytest.param("zz: 1 " * MANY, marks=pytest.mark.exhaustive),
        pytest.param(";" * MANY, marks=pytest.mark.exhaustive),
        pytest.param(
            "zz: [" * (MANY // 3), marks=pytest.mark.exhaustive
        ),  # three tokens each, and all are read
        'name: "" ' * MANY,
    ],
    ids=["names", "brackets", "unknown fields", "semicolons", "lists", "repetitions"],
)
def test_many_short_tokens_take_little_more_memory_than_their_text(text):
    tracemalloc.start()
    with suppress(PrototxtError):
        parse_text(text, NetParameter)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert most < 16 * len(text) + (12 << 20)  # so much for ten thousand faults


def test_reading_ends_after_many_faults():
    with expect_error(PrototxtError, ErrorCode.UNKNOWN, mentions="9981"):
        parse_text("".join(f"x{i}: 1 " for i in range(20_000)), NetParameter)


def test_a_message_about_a_long_name_is_cut():
    text = f'layer {{ name: "{"n" * MANY}" type: "Nothing" }}'

    with expect_error(NetError, mentions="characters") as caught:
        Net(parse_text(text, NetParameter), device="numpy")

    assert len(str(caught.value)) < 15_000


def test_an_image_has_only_so_many_pixels_for_its_file(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="images need Pillow")
    file = io.BytesIO()
    image.new("1", (9000, 9000)).save(file, "PNG")
    (tmp_path / "x.png").write_bytes(file.getvalue())

    with expect_error(DataError, ErrorCode.UNREADABLE, mentions=["x.png", "16777216"]):
        read_image(tmp_path / "x.png")


def test_a_list_of_faults_ends():
    layers = "".join(f'layer {{ name: "l{i}" type: "Nothing{i}" top: "t{i}" }}' for i in range(99))

    with expect_error(NetError, mentions=["l0", "Nothing0", "79"]):
        Net(parse_text(layers, NetParameter), device="numpy")


def test_a_pyramid_is_no_higher_than_its_image():
    text = (
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: [1, 1, 8, 8] } } }'
        'layer { name: "s" type: "SPP" bottom: "x" top: "s" spp_param { pyramid_height: 4000000 } }'
    )

    with expect_error(ConfigError, mentions=["'s'", "SPP", "5", "8"]):
        Net(parse_text(text, NetParameter), device="numpy")


def test_a_long_chain_in_place_is_prepared_in_parts(backend):
    layers = "".join(
        f'layer {{ name: "r{i}" type: "ReLU" bottom: "x" top: "x" }}' for i in range(3 * LONGEST)
    )
    text = (
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: [1, 3] } } }' + layers
    )
    net = Net(parse_text(text, NetParameter), device=backend)

    net.blobs["x"].data[...] = [-1, 0, 2]
    net.forward()

    np.testing.assert_array_equal(net.blobs["x"].data, [[0, 0, 2]])

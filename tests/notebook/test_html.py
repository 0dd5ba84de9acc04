"""What notebooks show: whole, harmless and legible without anything loaded."""

import base64
import re
import struct
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest
from expect_error import expect_error

import demitasse as dm
from demitasse.io.proto import NetParameter, SolverParameter, parse_text
from demitasse.notebook import Table, benchmark_table, consistency_table, html_of, summary

NET = """
name: "small"
layer { name: "data" type: "Input" top: "data"
  input_param { shape { dim: 2 dim: 3 dim: 6 dim: 6 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
"""

HOSTILE = '<script>alert(1)</script>\\"><img src=x onerror=alert(2)>'


class Tags(HTMLParser):
    """Notes the tags of a page, and complains of those that are not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in {"img", "rect", "path", "circle", "polyline", "polygon", "ellipse"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def checked(html: str) -> str:
    tags = Tags()
    tags.feed(html)
    assert not tags.open
    assert not tags.seen & {"script", "link", "iframe"}
    assert not re.search(r'(src|href)="(?!data:)', html)
    return html


def made(text: str = NET, phase: str = "TEST", **options) -> dm.Net:
    return dm.Net(parse_text(text, NetParameter), phase, **options)


def test_a_net_is_a_drawing_and_a_table():
    html = checked(made()._repr_html_())

    assert "112 parameters (448 bytes)" in html
    assert "<svg" in html
    assert "2x4x4x4" in html


def test_names_in_a_net_are_text_and_nothing_else():
    text = NET.replace('"small"', f'"{HOSTILE}"').replace('"conv"', f'"{HOSTILE}"')
    net = made(text)

    html = checked(net._repr_html_()) + checked(net.layers[1]._repr_html_())

    assert "&lt;script&gt;" in html


def test_a_large_net_is_folded():
    layers = "".join(
        f'layer {{ name: "r{i}" type: "ReLU" bottom: "conv" top: "conv" }}' for i in range(50)
    )

    html = checked(made(NET + layers)._repr_html_())

    assert "<details>" in html
    assert "<details open>" not in html


def test_a_blob_shows_numbers_histogram_and_pictures(backend):
    net = made(device=backend)
    net.blobs["data"].data = np.random.default_rng(0).normal(size=(2, 3, 6, 6))
    net.forward()

    html = checked(net.blobs["conv"]._repr_html_())

    assert f"conv 2x4x4x4 float32 on {net.device}" in html
    assert "<rect" in html
    assert "4 channels of the first item" in html


def pixels(html: str) -> np.ndarray:
    """Return the PNG in a page as an array (height, width, channels)."""
    content = base64.b64decode(re.search(r"base64,([^\"]+)", html)[1])
    width, height, _, kind = struct.unpack(">IIBB", content[16:26])
    size = struct.unpack(">I", content[33:37])[0]
    rows = np.frombuffer(zlib.decompress(content[41 : 41 + size]), np.uint8)
    return rows.reshape(height, -1)[:, 1:].reshape(height, width, 3 if kind == 2 else 1)


def test_colours_are_red_green_blue_on_the_page():
    blob = dm.Blob((1, 3, 2, 2))
    blob.data[...] = 0
    blob.data[0, 2] = 1  # red is the last of blue, green, red

    assert (pixels(blob._repr_html_()) == [255, 0, 0]).all()


def test_tiles_stand_side_by_side():
    blob = dm.Blob((1, 4, 2, 2))
    blob.data[...] = np.arange(4).reshape(1, 4, 1, 1)

    image = pixels(blob._repr_html_())[..., 0]

    assert image.tolist() == [
        [0, 0, 128, 85, 85],
        [0, 0, 128, 85, 85],
        [128] * 5,
        [170, 170, 128, 255, 255],
        [170, 170, 128, 255, 255],
    ]


def test_images_can_be_opened():
    image_module = pytest.importorskip("PIL.Image")
    import io

    blob = dm.Blob((70, 1, 300, 200))
    blob.data[...] = np.random.default_rng(0).normal(size=blob.shape)
    html = blob._repr_html_()

    image = image_module.open(io.BytesIO(base64.b64decode(re.search('base64,([^"]+)', html)[1])))

    image.load()
    assert "the first 64 of 70 items" in html


@pytest.mark.parametrize(
    "shape",
    [(), (0,), (3,), (2, 3), (2, 3, 4), (1, 2, 1, 1), (1, 1, 2, 2), (0, 3, 8, 8), (1, 0, 8, 8)],
)
@pytest.mark.parametrize("value", [0, 1.5, np.nan, np.inf])
def test_every_blob_can_be_shown(shape, value):
    blob = dm.Blob(shape)
    blob.data[...] = value

    checked(blob._repr_html_())


def test_integers_can_be_shown():
    blob = dm.Blob((4,), dtype="int32")
    blob.mutable_cpu_data()[...] = [1, 2, 3, 4]

    assert "2.5" in checked(blob._repr_html_())


def test_a_blob_that_was_never_written_says_so():
    assert "no values yet" in checked(made().blobs["conv"]._repr_html_())


def test_a_layer_shows_its_parameters():
    net = made()

    assert "parameter 1" in checked(net.layers[1]._repr_html_())
    assert "no parameters" in checked(net.layers[2]._repr_html_())


def test_blobs_and_parameters_are_tables():
    net = made()

    assert "2x4x4x4" in checked(net.blobs._repr_html_())
    assert "4x3x3x3" in checked(net.params._repr_html_())


def test_pycaffe_shows_the_same(tmp_path):
    from demitasse import pycaffe

    (tmp_path / "net.prototxt").write_text(NET)

    net = pycaffe.Net(str(tmp_path / "net.prototxt"), pycaffe.TEST)

    assert "112 parameters" in checked(net._repr_html_())


def test_other_things_are_refused():
    with expect_error(TypeError, mentions="int"):
        html_of(1)


# -- tables --------------------------------------------------------------------------------------


def test_a_summary_has_records_for_pandas():
    table = summary(made())

    assert len(table) == 3
    assert table.records[1] == {
        "layer": "conv", "type": "Convolution", "bottom": ["data"], "top": ["conv"],
        "shape": [[2, 4, 4, 4]], "parameters": 112, "multiply_adds": 3456, "bytes_moved": 1824,
    }  # fmt: skip
    assert [record["layer"] for record in table] == ["data", "conv", "relu"]
    assert "3,456" in checked(table._repr_html_())


def test_a_comparison_has_records():
    from demitasse.testing import compare

    table = consistency_table(compare(made(), ["cpu", "numpy"]))

    assert {record["device"] for record in table} == {"numpy"}
    assert all(record["relative"] < 1e-4 for record in table)
    checked(table._repr_html_())


def test_measurements_have_records(tmp_path):
    from demitasse.benchmark import Case, measure

    file = tmp_path / "net.prototxt"
    file.write_text(NET)

    [record] = benchmark_table(measure([Case(file, "numpy", 2, "TEST")], rounds=1, seconds=0.01))

    assert record["net"] == "net"
    assert record["images_per_second"] > 0


def test_a_table_without_rows_can_be_shown():
    checked(Table([], "none")._repr_html_())


# -- solvers -------------------------------------------------------------------------------------

TRAINED = """
layer { name: "data" type: "DummyData" top: "x" top: "y"
  dummy_data_param { shape { dim: 4 dim: 3 } shape { dim: 4 dim: 2 }
    data_filler { type: "gaussian" } data_filler { type: "gaussian" } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
  inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "y" top: "loss" }
"""


@pytest.fixture
def solver():
    param = SolverParameter(
        base_lr=0.1, lr_policy="fixed", max_iter=4, display=1, snapshot_after_train=False
    )
    param.net_param.CopyFrom(parse_text(TRAINED, NetParameter))
    with dm.Solver(param) as made:
        yield made


def test_a_solver_shows_how_far_it_is(solver):
    solver.step(3)

    html = checked(solver._repr_html_())

    assert "SGD solver" in html
    assert "3 of 4" in html

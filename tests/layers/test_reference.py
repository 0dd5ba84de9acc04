"""What the reference says of every layer type is what the code does, and every type has a page."""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from backend_support import BACKENDS, conformance_page, lowered_by, records, support
from goldens import golden_layers
from layer_examples import EXAMPLES

from demitasse import Net
from demitasse.backends.cpu import slow_reason
from demitasse.core.device import Device
from demitasse.errors import DeviceError
from demitasse.io.proto import LayerParameter, NetParameter, parse_text
from demitasse.layers.base import Layer
from demitasse.layers.metadata import FAMILIES, METADATA, canonical_type, layer_metadata
from demitasse.layers.registry import CATALOG
from demitasse.testing import make_layer
from demitasse.testing.conformance.plugin import digest_of_cases

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAMES = sorted(METADATA)
KERNELS_ALONE = {"AbsVal", "BNLL", "Clip", "ELU", "Exp", "MVN", "Power", "ReLU6", "Swish"}
"""Types that have no Step on ``cpu`` but those of kernels that are made at run time."""
ALIASES = [alias for facts in METADATA.values() for alias in facts.aliases]


@pytest.fixture(scope="module")
def pages():
    """The module that writes the pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        yield import_module("layer_pages")
    for name in ("layer_pages", "message_tables", "proto_text"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def written(pages):
    """The pages by path."""
    return pages.layer_pages()


@cache
def layer_of(name: str) -> type[Layer]:
    """The class of a type: registered under its name, or called so."""
    classes = inspect.getmembers(import_module(CATALOG[name]), inspect.isclass)
    own = [c for _, c in classes if c.__module__ == CATALOG[name] and issubclass(c, Layer)]
    [found] = [c for c in own if c.type == name] or [c for c in own if c.__name__ == name]
    return found


@cache
def key_of(op: object) -> str:
    """How the facts call an operation: by its name, an activation by its function."""
    name = getattr(op, "function", type(op).__name__)
    return name if any(name in lowered_by(backend) for backend in BACKENDS) else ""


def parts_of(module, classes):
    """The syntax of some classes of a module."""
    tree = ast.parse(inspect.getsource(module))
    names = {each.__name__ for each in classes if inspect.getmodule(each) is module}
    return [node for node in tree.body if getattr(node, "name", "") in names]


def params_read(tree):
    """Yield the fields of messages that code takes from ``self.param``, by their names."""
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    inner = {node.value for node in attributes}
    for node in attributes:
        if node in inner:  # a part of a longer name
            continue
        start, *path = ast.unparse(node).split(".")
        if start == "self" and len(path) > 1 and path[0] == "param" and path[1].endswith("_param"):
            yield tuple(path[1:])


def need_library(backend: str) -> None:
    if backend == "cpu" and slow_reason():
        pytest.skip(slow_reason())


def kernels_width() -> int:
    """Return the floats of the vectors of kernels that are made at run time; 0 without them."""
    from demitasse.backends.cpu.engine import engine

    return engine().tuning.as_set(threads=1).width


def recorded_nets(device: str) -> Iterator[Net]:
    """Yield the recorded nets, and each without gradients, for which there are further Steps."""
    for case in golden_layers():
        yield case.net(device=device)
        message = parse_text(case.path.read_text(), NetParameter)
        message.force_backward = False
        yield Net(message, "TEST", device=device)


@cache
def recorded_types() -> frozenset[str]:
    return frozenset(name for case in golden_layers() for name in case.types)


def test_every_type_of_the_catalogue_is_described_once():
    assert sorted([*METADATA, *ALIASES]) == sorted(CATALOG)
    assert {facts.family for facts in METADATA.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", ALIASES)
def test_further_names_are_of_the_same_class(name):
    assert CATALOG[name] == CATALOG[canonical_type(name)]


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_every_type_has_a_page_with_all_its_fields(name, pages, written):
    page = written[pages.page_of(name)]

    assert f"({pages.page_of(name).removeprefix('reference/')})" in written[pages.INDEX]
    assert name in page
    assert f"::: {pages.class_of(canonical_type(name))}" in page
    assert EXAMPLES[canonical_type(name)].text in page
    for path in layer_metadata(name).fields:
        message, _, single = path.partition(".")
        described = LayerParameter.DESCRIPTOR.fields_by_name[message].message_type
        where = written[pages.MESSAGES] if described.name in pages.SHARED else page
        for field in described.fields:
            assert single not in ("", field.name) or f"| `{field.name}` |" in where


def test_every_message_that_is_linked_to_is_described(pages, written):
    links = {link for text in written.values() for link in re.findall(r"messages\.md#(\w+)", text)}

    headings = {name.lower() for name in re.findall(r"^## (\w+)", written[pages.MESSAGES], re.M)}

    assert links <= headings


@pytest.mark.parametrize("name", NAMES)
def test_fields_are_those_that_the_code_reads(name):
    classes = layer_of(name).__mro__
    own = [c for c in classes if c.__module__.startswith("demitasse.") and c is not Layer]
    modules = {inspect.getmodule(part) for part in own}
    trees = [part for module in modules for part in parts_of(module, own)]
    read = {
        "data_param.prefetch" if path[:2] == ("data_param", "prefetch") else path[0]
        for tree in trees
        for path in params_read(tree)
    }
    declared = set(METADATA[name].fields)
    if "data_param" in declared:
        read.discard("data_param.prefetch")

    assert declared == read


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_where_the_reference_says(name):
    kind, said = layer_of(name), METADATA[name].gradient

    if said == "source":
        assert (kind.bottoms.low, kind.bottoms.high) == (0, 0)
    elif said == "gradient":
        assert kind.backward is not Layer.backward
        assert name == "Python" or kind.bottoms.low > 0
    else:
        assert kind.backward is Layer.backward or name in {"HDF5Output", "PriorBox", "Silence"}


@pytest.mark.parametrize(
    ("layer", "shapes"),
    [
        ('type: "Silence"', [(2, 3)]),
        ('type: "PriorBox" prior_box_param { min_size: 4 }', [(1, 2, 3, 3), (1, 3, 9, 9)]),
    ],
    ids=["Silence", "PriorBox"],
)
def test_where_a_gradient_ends_it_is_zero(layer, shapes):
    single = make_layer(layer, [np.ones(shape) for shape in shapes])
    for blob in single.bottom:
        blob.diff[...] = 7

    single.forward()
    gradients = single.backward(propagate_down=[True] * len(shapes))

    assert not any(gradient.any() for gradient in gradients)


def test_what_is_recorded_from_caffe_is_marked_as_compared():
    marked = {name for name in recorded_types() if layer_metadata(name).reference == "Caffe"}

    assert marked == recorded_types()


def test_what_is_marked_as_compared_is_recorded(reference_data):
    cases = (reference_data / "goldens_data").glob("*.prototxt")
    data = {name for case in cases for name in re.findall(r'type: *"(\w+)"', case.read_text())}
    models = (reference_data / "models").glob("*/*.prototxt")
    seen = {name for net in models for name in re.findall(r'type: *"(\w+)"', net.read_text())}

    caffe = {name for name in NAMES if METADATA[name].reference == "Caffe"}
    opencv = {name for name in NAMES if METADATA[name].reference == "OpenCV"}

    assert caffe == {*recorded_types(), *data} & CATALOG.keys()
    assert opencv <= seen


@pytest.mark.parametrize("name", NAMES)
def test_docstrings_say_what_is_not_compared(name):
    kind = layer_of(name)
    said = " ".join(f"{kind.__doc__} {inspect.getmodule(kind).__doc__}".split())

    judge = METADATA[name].reference

    assert judge != "" or "ot compared with the original" in said
    assert judge != "OpenCV" or "Compared with OpenCV" in said


def test_operations_of_the_reference_are_those_that_backends_have():
    found = frozenset().union(*(lowered_by(name) for name in BACKENDS))

    assert {facts.op for facts in METADATA.values()} - {""} == found


@pytest.mark.parametrize("name", ["numpy", "cpu"])
def test_recorded_cases_run_as_the_reference_says(name):
    need_library(name)
    lowered, seen = set(), set()

    for net in recorded_nets(name):
        net.forward()
        for layer, step in zip(net.layers, net.plan.steps(), strict=True):
            assert key_of(layer.op) in ("", layer_metadata(layer.type).op)
            seen.add(canonical_type(layer.type))
            lowered |= {canonical_type(layer.type)} if step is not None else set()

    wanted = {kind for kind in seen if support(kind)[name] == "lowered"}
    if name == "cpu" and not kernels_width():
        wanted -= KERNELS_ALONE
    assert sorted(lowered) == sorted(wanted)


RECORDS = records()
RUN_ELSEWHERE = {"cuda"}
"""Backends whose record is of a run on a GPU, with the cases recorded from Caffe."""


@pytest.mark.parametrize("name", sorted({*RECORDS} - RUN_ELSEWHERE))
def test_a_record_of_conformance_is_of_the_present_cases_and_types(name):
    """Run ``python -m demitasse.testing.conformance --device NAME --record FILE`` if it fails."""
    record = RECORDS[name]

    assert record["cases"] == digest_of_cases()
    for dtype in ("float32", "float64"):
        part = record[dtype]
        assert sorted({*part["passed"].split(), *part["refused"]}) == sorted(CATALOG)
        assert "failed" not in part["refused"].values()


@pytest.mark.parametrize("name", sorted({*RECORDS} - RUN_ELSEWHERE))
def test_a_record_of_an_installed_backend_has_the_float_types_of_the_backend(name):
    try:
        backend = Device(RECORDS[name]["device"]).backend
    except DeviceError:
        pytest.skip(f"{name} is not installed")
    for dtype in ("float32", "float64"):
        some = next(iter(CATALOG))
        if dtype == "float32" or backend.has_float64:
            assert some in RECORDS[name][dtype]["passed"].split()


def test_the_table_has_a_row_for_each_type_and_a_column_for_each_backend():
    rows = [line for line in conformance_page().splitlines() if line.startswith("| ")]

    assert [cell.strip() for cell in rows[0].strip("|").split("|")][1:] == sorted(RECORDS)
    assert {row.split("`")[1] for row in rows[2 : 2 + len(CATALOG)]} == {*CATALOG}

"""Every numeric field of every layer type is given values that nobody means.

A net that is made of one, and run where it can be made, ends well or with an error of ours, and
takes no more than a little memory. Every run tries each second value, by turns with those between;
all of them, and the processor's own code, are exhaustive.
"""

from functools import cache
from pathlib import Path

import pytest
from example_nets import example_net
from expect_error import expect_error
from fields import is_repeated
from google.protobuf.descriptor import FieldDescriptor as Field
from layer_examples import EXAMPLES
from needs import needs

from demitasse import Net
from demitasse.errors import DemitasseError, DeviceError, ErrorCode
from demitasse.io.proto import LayerParameter, NetParameter
from demitasse.layers.metadata import METADATA, layer_metadata
from demitasse.testing.conformance.file_cases import FILES

resource = pytest.importorskip("resource", reason="limits of memory need a Unix")

MOST = 1 << 30
"""How much memory a case may take, in bytes."""

LONGEST = 16_000
"""Characters of a message that somebody reads."""

MANY = 20_000
"""Values of a field, whose product or sum is no number that can be written out."""

WHOLE = (0, -1, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**63 - 1)
REAL = (0.0, -1.0, float("nan"), float("inf"), -float("inf"), 1e38)
RANGES = {
    Field.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    Field.CPPTYPE_UINT32: (0, 2**32 - 1),
    Field.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    Field.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def values_of(field):
    if field.cpp_type in RANGES:
        low, high = RANGES[field.cpp_type]
        return [value for value in WHOLE if low <= value <= high]
    return REAL if field.cpp_type in {Field.CPPTYPE_FLOAT, Field.CPPTYPE_DOUBLE} else ()


def numeric(message, path=()):
    """Yield the paths of the numeric fields of a kind of message."""
    for field in message.fields:
        if field.cpp_type != Field.CPPTYPE_MESSAGE:
            if values_of(field):
                yield (*path, field)
        elif len(path) < 3:
            yield from numeric(field.message_type, (*path, field))


def fields_of(name):
    """Yield the paths of the numeric fields that a layer type reads."""
    for spec in (*METADATA[name].fields, "loss_weight", "param"):
        first, _, second = spec.partition(".")
        field = LayerParameter.DESCRIPTOR.fields_by_name[first]
        if field.cpp_type != Field.CPPTYPE_MESSAGE:
            yield from [(field,)] if values_of(field) else []
            continue
        for path in numeric(field.message_type, (field,)):
            if not second or path[1].name == second:
                yield path


def put(message, path, value):
    """Set a field; of one that may be given several times, the first."""
    for field in path[:-1]:
        message = getattr(message, field.name)
        if is_repeated(field):
            message = message[0] if len(message) else message.add()
    name = path[-1].name
    if not is_repeated(path[-1]):
        setattr(message, name, value)
    elif len(getattr(message, name)):
        getattr(message, name)[0] = value
    else:
        getattr(message, name).append(value)


def put_many(message, path, value):
    """Give a field that may be given several times a great many values."""
    put(message, path, value)
    for field in path[:-1]:
        message = getattr(message, field.name)
        message = message[0] if is_repeated(field) else message
    getattr(message, path[-1].name).extend([value] * MANY)


net_of = cache(example_net)


@pytest.fixture
def little_memory():
    """Let the process take a little more memory than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@needs("/proc")
@pytest.mark.parametrize(
    ("device", "step"),
    [
        ("numpy", 2),
        pytest.param("numpy", 1, marks=pytest.mark.exhaustive),
        pytest.param("cpu", 1, marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "Python"])
def test_a_value_nobody_means_ends_well_or_in_an_error_of_ours(
    name, device, step, tmp_path, monkeypatch, little_memory
):
    monkeypatch.chdir(tmp_path)
    if name in FILES:
        for library in FILES[name].needs:
            pytest.importorskip(library)
        FILES[name].write()

    for number, path in enumerate(dict.fromkeys(fields_of(name))):
        for value in values_of(path[-1])[number % step :: step]:
            run(name, path, value, device)


REPEATED = {
    name: paths
    for name in EXAMPLES
    if name != "Python"
    and (paths := [p for p in dict.fromkeys(fields_of(name)) if any(map(is_repeated, p))])
}


@needs("/proc")
@pytest.mark.parametrize("name", REPEATED)
def test_many_values_end_well_or_in_an_error_of_ours(name, tmp_path, monkeypatch, little_memory):
    monkeypatch.chdir(tmp_path)
    if name in FILES:
        for library in FILES[name].needs:
            pytest.importorskip(library)
        FILES[name].write()

    for path in REPEATED[name]:
        if is_repeated(path[-1]):
            for value in (1, values_of(path[-1])[-1]):
                run(name, path, value, "numpy", put_many)


def run(name, path, value, device, change=put):
    param = NetParameter()
    param.CopyFrom(net_of(name))
    layer = next(one for one in param.layer if one.type in {name, *METADATA[name].aliases})
    change(layer, path, value)
    where, told = ".".join(field.name for field in path), ""
    try:
        with Net(param, device=device, base_dir=Path.cwd()) as net:
            if sum(blob.count for blob in net.blobs.values()) < 1e7:
                net.forward()
                if layer_metadata(name).gradient == "gradient":
                    net.backward(-1)
    except DemitasseError as error:
        told = str(error)
    except Exception as error:
        error.add_note(f"{name}: {where}: {value}")
        raise
    assert len(told) < LONGEST, f"{name}: {where}: {value}"


def test_a_lack_of_memory_names_the_layer_and_the_parameter():
    param = NetParameter()
    param.CopyFrom(net_of("InnerProduct"))
    param.layer[-1].inner_product_param.num_output = 2**31

    with expect_error(DeviceError, ErrorCode.OUT_OF_MEMORY, mentions=["fc1", "0"]):
        Net(param, device="numpy")

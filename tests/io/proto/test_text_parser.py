"""The grammar of prototxt, and what is said about texts that break it."""

import pytest
from expect_error import expect_error

from demitasse.errors import ErrorCode, PrototxtError
from demitasse.io.proto import (
    BlobShape,
    LayerParameter,
    NetParameter,
    SolverParameter,
    SolverState,
    parse_text,
)


def faults(text, cls=NetParameter):
    """Return every fault as (line, column, message)."""
    with pytest.raises(PrototxtError) as caught:
        parse_text(text, cls, "f")
    lines = str(caught.value).splitlines()
    return [
        (int(line), int(column), message.strip())
        for _, line, column, message in (line.split(":", 3) for line in lines)
    ]


def check_faults(text, *expected, cls=NetParameter):
    """Check line, column and mentioned names of every fault."""
    found = faults(text, cls)
    assert [fault[:2] for fault in found] == [fault[:2] for fault in expected]
    for (_, _, message), (_, _, *names) in zip(found, expected, strict=True):
        assert all(name in message for name in names), message


@pytest.mark.parametrize("kind", [NetParameter, SolverParameter])
def test_a_label_map_that_is_read_as_something_else_is_named(kind):
    with expect_error(PrototxtError, ErrorCode.UNKNOWN, mentions="'item'"):
        parse_text('item { name: "none" label: 0 }', kind)


def test_a_placeholder_of_a_template_is_named():
    text = "inner_product_param { num_output: ${CLASSES} }"

    with expect_error(PrototxtError, ErrorCode.UNREADABLE, mentions=["num_output", "${NAME}"]):
        parse_text(text, LayerParameter)


@pytest.mark.parametrize(
    "text",
    [
        'layer { name: "a" }',
        'layer: { name: "a" }',
        'layer < name: "a" >',
        'layer: [{ name: "a" }]',
        'layer { name: "a"; };',
        'layer{name:"a",},',
        'layer # comment { \n { name # : \n : "a" }',
        '\ufefflayer { name: "a" }',
    ],
)
def test_a_message_may_be_written_in_many_ways(text):
    net = NetParameter()
    net.layer.add(name="a")

    assert parse_text(text, NetParameter) == net


@pytest.mark.parametrize(
    "text", ["dim: 1 dim: 2", "dim: [1, 2]", "dim: [1] dim: 2", "dim:1,dim:2;"]
)
def test_repeated_values_may_be_listed(text):
    assert list(parse_text(text, BlobShape).dim) == [1, 2]


def test_empty_lists_and_empty_texts_are_valid():
    assert parse_text("dim: []", BlobShape) == BlobShape()
    assert parse_text(" # nothing\n", NetParameter) == NetParameter()
    assert parse_text("layer: []", NetParameter) == NetParameter()


def test_an_empty_message_is_there():
    assert parse_text("transform_param {}", LayerParameter).HasField("transform_param")


def test_an_unknown_field_names_the_nearest():
    text = "layer {\n  convolution_param { kernal_size: 3 }\n}"

    check_faults(text, (2, 23, "ConvolutionParameter", "'kernal_size'", "'kernel_size'"))


def test_a_misplaced_field_names_its_message():
    check_faults("layer { lr_mult: 1 }", (1, 9, "LayerParameter", "'lr_mult'", "param"))


def test_a_field_of_the_old_format_names_its_heir():
    check_faults(
        "layer { blobs_lr: 1 }", (1, 9, "LayerParameter", "'blobs_lr'", "param { lr_mult: ... }")
    )


def test_all_faults_are_found_and_the_rest_is_read_on():
    text = """\
name: net
layer {
  name: "a"
  typ: "ReLU"
  convolution_param { num_output: many pad: -1 bias_term: maybe }
}
layer { relu_param { negative_slope: 'x' } }
"""

    assert [(line, column) for line, column, _ in faults(text)] == [
        (1, 7),
        (4, 3),
        (5, 35),
        (5, 45),
        (5, 59),
        (7, 38),
    ]


def test_the_exception_carries_the_first_place():
    with pytest.raises(PrototxtError) as caught:
        parse_text("name: 'a'\nnam: 'b'\nnme: 'c'", NetParameter, "lenet.prototxt")

    assert (caught.value.source, caught.value.line, caught.value.column) == ("lenet.prototxt", 2, 1)
    first, second = str(caught.value).splitlines()
    assert first.startswith("lenet.prototxt:2:1: NetParameter")
    assert second.startswith("lenet.prototxt:3:1: NetParameter")
    assert ("'nam'" in first, "'nme'" in second) == (True, True)


def test_without_a_source_places_stand_alone():
    with expect_error(PrototxtError, ErrorCode.UNKNOWN, mentions="'nam'"):
        parse_text("nam: 'b'", NetParameter)


def test_equal_faults_are_listed_once():
    text = "layer { foo: 1 }\n" * 9

    check_faults(text, (1, 9, "LayerParameter", "'foo'", "2, 3, 4, 5, 6"))


def test_a_very_wrong_file_is_cut_short():
    text = "\n".join(f"field_{i}: {i}" for i in range(100))

    with pytest.raises(PrototxtError) as caught:
        parse_text(text, NetParameter)

    lines = str(caught.value).splitlines()
    assert len(lines) == 21
    assert "80" in lines[-1]


@pytest.mark.parametrize(
    "text",
    [
        f"{'a' * 10**5}: 1",
        f"{'a' * 10**5} 1",
        f"layers {{ type: {'A' * 10**5} }}",
        f"input_dim: {'9' * 10**5}",
        f"input_dim: 0x{'f' * 10**5}",
        f"input_dim: 0{'9' * 10**5}",
        f"force_backward: {'x' * 10**5}",
        f"layer {{ loss_weight: {'x' * 10**5} }}",
        f"name: '{'x' * 10**5}",
    ],
)
def test_messages_stay_short_whatever_they_are_about(text):
    with pytest.raises(PrototxtError) as raised:
        parse_text(text, NetParameter)

    assert len(str(raised.value)) < 250
    assert "digits for integer" not in str(raised.value)  # which is Python's business


def test_a_single_field_given_twice_names_the_first_line():
    check_faults("name: 'a'\nname: 'b'", (2, 1, "name", "line 1"))


def test_a_message_given_twice_is_refused_and_read_for_faults():
    text = "layer {\n relu_param { }\n relu_param { engine: GPU } }"

    assert [line for line, _, _ in faults(text)] == [3, 3]


def test_a_list_for_a_single_field_is_refused():
    text = "device_id: [0, 1]\nmax_iter: x"

    check_faults(text, (1, 12, "device_id"), (2, 11, "max_iter", "'x'"), cls=SolverParameter)


@pytest.mark.parametrize(
    ("text", "place", "names"),
    [
        ("layer {\n name: 'a'", (2, 11), ["'}'", "'{'", "line 1"]),
        ("layer < }", (1, 9), "}"),
        ("name: 'a' }", (1, 11), "}"),
        ("name 'a'", (1, 6), ["':'", "'name'", "'a'"]),
        ("layer 'a'", (1, 7), ["'{'", "'layer'", "'a'"]),
        ("input_dim: [1 2]", (1, 15), ["','", "']'", "2"]),
        ("input_dim: [1,]", (1, 15), ["input_dim", "]"]),
        ("input_dim: [1", (1, 14), ["','", "']'"]),
        ("foo", (1, 1), ["':'", "'{'", "'foo'"]),
        ("foo { bar: [", (1, 5), ["'{'", "line 1"]),
        ("[caffe.ext]: 1", (1, 1), "["),
        ("// comment", (1, 1), "/"),
        ("name:\u00a0'a'", (1, 6), [r"\xa0"]),
        ("name: 'a'\n\ufeff", (2, 1), [r"\ufeff"]),
        ("name: ", (1, 7), ["name"]),
        ("layer { foo: }", (1, 14), ["foo"]),
        ("foo: name: 'a'", (1, 6), ["foo"]),
    ],
)
def test_broken_grammar_is_named(text, place, names):
    line, column, message = faults(text)[0]

    assert (line, column) == place
    assert all(name in message for name in names)


def test_a_missing_value_does_not_hide_the_next_field():
    text = "layer {\n  pooling_param {\n    pool:\n    kernel_siz: 3\n  }\n  nam: 'x'\n}"

    assert [line for line, _, _ in faults(text)] == [4, 4, 6]


def test_a_missing_required_field_is_named_where_its_message_opens():
    check_faults("layer {\n  clip_param { min: 0 }\n}", (2, 14, "ClipParameter", "max"))


def test_the_type_of_a_layer_tells_old_and_new_apart():
    old = faults('layers { type: "Softmax" }')
    new = faults("layer { type: SOFTMAX }")

    assert all(name in old[0][2] for name in ('"Softmax"', "'layers'", "CONVOLUTION", "'layer'"))
    assert all(name in new[0][2] for name in ('"SOFTMAX"', "'layers'", "'layer'"))


def test_unknown_fields_are_skipped_on_request(caplog):
    text = "name: 'a' foo { bar: [1, {x: 2}] 'z' } baz: -1 qux: 'a' 'b' layer { name: 'b' foo: x }"

    net = parse_text(text, NetParameter, "f", ignore_unknown_fields=True)

    assert net == NetParameter(name="a", layer=[{"name": "b"}])
    expected = [
        ("f:1:11: NetParameter", "'foo'"),
        ("f:1:40: NetParameter", "'baz'"),
        ("f:1:48: NetParameter", "'qux'"),
        ("f:1:79: LayerParameter", "'foo'"),
    ]
    for record, (start, field) in zip(caplog.records, expected, strict=True):
        assert record.levelname == "WARNING"
        assert record.getMessage().startswith(start)
        assert field in record.getMessage()


def test_skipping_unknown_fields_still_refuses_broken_grammar():
    with expect_error(PrototxtError, ErrorCode.UNREADABLE, mentions="1:10"):
        parse_text("foo: [1] } name: 'a'", NetParameter, ignore_unknown_fields=True)


def test_deep_nesting_of_unknown_messages_is_no_danger():
    text = "foo " + "{ a " * 100_000 + "{ }" + " }" * 100_000

    assert parse_text(text, NetParameter, ignore_unknown_fields=True) == NetParameter()


def test_messages_of_ours_are_read_too():
    text = "iter: 3 resume { seed: 18446744073709551615 net { passes: 3 } losses: [1, 2] }"

    state = parse_text(text, SolverState)

    assert state.resume.seed == 2**64 - 1
    assert list(state.resume.losses) == [1, 2]

"""Settings that are NaN or infinite are refused where they are read, by field and line."""

import pytest
from expect_error import expect_error
from google.protobuf.descriptor import FieldDescriptor

from demitasse import ConfigError, ErrorCode, Net, Solver, lint
from demitasse.io.proto import (
    FillerParameter,
    NetParameter,
    ParamSpec,
    SolverParameter,
    TransformationParameter,
    parse_text,
)

VALUES = ("nan", "inf", "-inf", "1e39")  # the last exceeds float32
REAL = (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE)
TRAIN = """
layer { name: "d" type: "DummyData" top: "x" top: "l"
        dummy_data_param { shape { dim: 2 dim: 4 } shape { dim: 2 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "l" }
"""


def reals(kind, inside="%s"):
    """Yield the real fields of a message class, and text that sets each field."""
    for field in kind.fields:
        if field.type in REAL:
            yield field.name, inside % f"{field.name}: %s"
        elif field.message_type is not None:
            yield from reals(field.message_type, inside % f"{field.name} {{ %s }}")


SOLVER = [f.name for f in SolverParameter.DESCRIPTOR.fields if f.type in REAL]
LAYER = [
    *((name, f"weight_filler {{ {text} }}") for name, text in reals(FillerParameter.DESCRIPTOR)),
    *(
        (name, f"}} transform_param {{ {t}")
        for name, t in reals(TransformationParameter.DESCRIPTOR)
    ),
    *((name, f"}} param {{ {text}") for name, text in reals(ParamSpec.DESCRIPTOR)),
]


def layer(text):
    """Return a net with a layer on line 2."""
    return (
        'layer { name: "i" type: "Input" top: "x" input_param { shape { dim: 2 dim: 4 } } }\n'
        'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" '
        f"inner_product_param {{ num_output: 2 {text} }} }}"
    )


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("field", SOLVER)
def test_of_a_solver(tmp_path, monkeypatch, field, value):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.prototxt").write_text(TRAIN)
    lines = {"net": '"t.prototxt"', "lr_policy": '"fixed"', "base_lr": "0.1", field: value}
    (tmp_path / "s.prototxt").write_text("".join(f"{k}: {v}\n" for k, v in lines.items()))
    line = list(lines).index(field) + 1

    with expect_error(ConfigError, ErrorCode.NOT_FINITE, field=field) as caught:
        Solver("s.prototxt", device="numpy")

    assert f"s.prototxt:{line}" in str(caught.value)
    assert [f for f in lint.lint("s.prototxt") if f.severity == "error" and field in f.message]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(("field", "text"), LAYER)
def test_of_a_layer(tmp_path, monkeypatch, field, text, value):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "n.prototxt").write_text(layer(text % value))

    with expect_error(ConfigError, ErrorCode.NOT_FINITE) as caught:
        Net("n.prototxt", phase="TRAIN", device="numpy")

    assert caught.value.details["field"].endswith(field)
    assert "n.prototxt:2" in str(caught.value)
    assert "not-finite" in [finding.code for finding in lint.lint("n.prototxt")]


@pytest.mark.parametrize("value", VALUES)
def test_of_a_loss_weight_in_a_message(value):
    text = TRAIN.replace('bottom: "l" }', f'bottom: "l" top: "o" loss_weight: {value} }}')

    with expect_error(ConfigError, ErrorCode.NOT_FINITE, field="loss_weight"):
        Net(parse_text(text, NetParameter), phase="TRAIN", device="numpy")

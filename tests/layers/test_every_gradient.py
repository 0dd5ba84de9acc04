"""Every layer type, and every option of each, on every device in both precisions.

Gradients are held against differences of the tops, and devices against portable code.

The cases are those of ``demitasse.testing.layer_cases``. The last tests hold them to the table
of facts, so that a new type or field without a case is noticed.
"""

from collections import defaultdict

import pytest
from fields import is_repeated
from google.protobuf.descriptor import FieldDescriptor
from gradients import expect_gradients, expect_portable_values

from demitasse.io.proto import LayerParameter, parse_text
from demitasse.layers.metadata import METADATA
from demitasse.testing.layer_cases import CASES, OTHER_CASES

ELSEWHERE = {
    "Flatten": "test_shapes.py: shares its gradient with the bottom",
    "Reshape": "test_shapes.py, test_geometry.py: shares its gradient with the bottom",
    "Squeeze": "test_fork_layers.py: shares its gradient with the bottom",
    "Python": "test_python_layer.py: its module has it",
}
"""Types with a gradient that have no case here, and where they are tested."""

NO_GRADIENT_IN = {
    "engine": "says how, not what",
    "debug_info": "prints",
    "LSTM.expose_hidden": "the gradient is cut there, as in Caffe: test_recurrent.py",
    "RNN.expose_hidden": "the gradient is cut there, as in Caffe: test_recurrent.py",
    "Im2col.num_output": "of no meaning here",
    "Im2col.bias_term": "of no meaning here",
    "Im2col.group": "of no meaning here",
    "Im2col.weight_filler": "of no meaning here",
    "Im2col.bias_filler": "of no meaning here",
    "MVN.eps": "not in the derivative, as in Caffe",
    "BatchNorm.use_global_stats=True": "test_batch_norm.py, with averages that are not 0",
    "MultiBoxLoss.ignore_label": "of no meaning here",
    "SmoothL1LossOHEM.ignore_label": "of no meaning here",
    "InfogainLoss.source": "test_losses.py, from a file",
    "InfogainLoss.normalize": "refused",
}
"""Fields, values and types' fields that have no case here, and why."""
NO_GRADIENT_IN |= {
    f"{name}.{field}": "refused, but in SoftmaxWithLoss"
    for name in (
        "FocalLoss",
        "InfogainLoss",
        "MultiBoxLoss",
        "SigmoidCrossEntropyLoss",
        "SmoothL1LossOHEM",
    )
    for field in ("label_smoothing", "weight_by_label_freqs", "class_weighting")
}


def every(table):
    return pytest.mark.parametrize("case", [c for cases in table.values() for c in cases], ids=str)


@pytest.mark.everywhere
@every(CASES)
def test_the_gradient_is_that_of_differences(case, backend):
    options = {"step": 1e-4, "threshold": 1e-5, **case.check}

    expect_gradients(
        case.text, *case.bottoms, device=backend, phase=case.phase, passes=case.passes, **options
    )


@pytest.mark.everywhere
@every(OTHER_CASES)
def test_a_layer_without_a_gradient_computes_the_same_everywhere(case, backend):
    expect_portable_values(
        case.text, *case.bottoms, device=backend, phase=case.phase, passes=case.passes
    )


ALIASES = {alias for facts in METADATA.values() for alias in facts.aliases}
WITH_GRADIENT = sorted(name for name, facts in METADATA.items() if facts.gradient == "gradient")


def test_every_type_with_a_gradient_has_a_case():
    assert sorted({*CASES, *ELSEWHERE} - ALIASES) == WITH_GRADIENT
    assert set(CASES) >= ALIASES


def options_of(name):
    """Yield what a type's cases should set: fields, and the values of those that have few."""
    for message in METADATA[name].fields:
        for field in LayerParameter.DESCRIPTOR.fields_by_name[message].message_type.fields:
            if field.enum_type:
                for value in field.enum_type.values:
                    yield field.name, f"{field.name}={value.name}", value.number
            elif field.type == FieldDescriptor.TYPE_BOOL:
                yield field.name, f"{field.name}={not field.default_value}", not field.default_value
            else:
                yield field.name, field.name, None


@pytest.mark.parametrize("name", sorted(set(WITH_GRADIENT) - set(ELSEWHERE)))
def test_every_option_has_a_case(name):
    seen = defaultdict(list)
    for case in CASES[name]:
        param = parse_text(case.fields, LayerParameter)
        for message in METADATA[name].fields:
            group = getattr(param, message)
            for field in group.DESCRIPTOR.fields:
                given = not is_repeated(field) and group.HasField(field.name)
                if given or (is_repeated(field) and getattr(group, field.name)):
                    seen[field.name].append(getattr(group, field.name))
                elif field.enum_type:
                    seen[field.name].append(field.default_value)

    missing = [
        option
        for field, option, value in options_of(name)
        if not {field, f"{name}.{field}", f"{name}.{option}"} & set(NO_GRADIENT_IN)
        and (not seen[field] if value is None else value not in seen[field])
    ]

    assert not missing

"""Every layer type of the catalogue has a form in each framework, or a reason why it has none."""

import pytest

from demitasse.interop.export.reduction import IGNORED, is_source, is_training_only
from demitasse.interop.onnx_export import converters as onnx
from demitasse.interop.onnx_export.converters import unsupported_reason
from demitasse.interop.torch_export import converters as torch
from demitasse.io.proto import LayerParameter
from demitasse.layers import layer_types
from demitasse.layers.registry import CATALOG


@pytest.fixture(params=[onnx, torch], ids=["onnx", "torch"])
def table(request):
    """What every layer type becomes in a framework."""
    return request.param


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_every_type_is_written_or_taken_in_or_left_out_or_refused_with_a_reason(name, table):
    layer = LayerParameter(name="layer", type=name)

    known = name in table.CONVERTERS or name in table.REASONS or name in IGNORED

    assert known or is_source(layer) or is_training_only(name)


def test_there_are_no_converters_of_types_that_are_not_there(table):
    assert set(table.CONVERTERS) | set(table.REASONS) <= set(layer_types())


def test_what_has_a_form_in_one_framework_has_one_in_the_other():
    assert set(onnx.CONVERTERS) == set(torch.CONVERTERS)


def test_types_of_others_are_refused_by_name(table):
    assert table.unsupported_reason(LayerParameter(name="x", type="Theirs"))
    assert not table.unsupported_reason(LayerParameter(name="x", type="ReLU"))


def test_a_dropout_that_goes_on_drawing_is_refused(table):
    layer = LayerParameter(name="x", type="Dropout")
    layer.dropout_param.sample_weights_test = True

    assert "dropout_param.sample_weights_test" in table.unsupported_reason(layer)


def test_a_suppression_whose_threshold_moves_is_refused():
    layer = LayerParameter(name="x", type="DetectionOutput")
    layer.detection_output_param.nms_param.eta = 0.9

    assert "nms_param.eta" in unsupported_reason(layer)

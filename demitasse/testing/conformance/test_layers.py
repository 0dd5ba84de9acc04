"""Every layer type, forward and backward, in nets of one layer."""

import numpy as np
import pytest

from demitasse.core.device import Device
from demitasse.io.proto import LayerParameter, NetParameter, parse_text
from demitasse.layers.metadata import layer_metadata
from demitasse.layers.registry import CATALOG
from demitasse.testing import make_layer
from demitasse.testing.conformance.file_cases import FILES
from demitasse.testing.conformance.runs import run_on_both
from demitasse.testing.layer_cases import CASES, OTHER_CASES, LayerCase

EVERY_CASE = [case for table in (CASES, OTHER_CASES) for cases in table.values() for case in cases]


def test_every_type_of_the_catalogue_is_tried():
    assert sorted({*CASES, *OTHER_CASES, *FILES}) == sorted(CATALOG)


@pytest.mark.parametrize("case", EVERY_CASE, ids=str)
def test_layer_computes_what_numpy_computes(case: LayerCase, device: Device, dtype: str):
    param, inputs = net_of(case)

    run_on_both(param, device, dtype, inputs, case.phase)


@pytest.mark.parametrize("name", FILES)
def test_layer_that_knows_the_host(name, device, dtype, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tried = FILES[name]
    for library in tried.needs:
        pytest.importorskip(library, reason=f"{name} needs {library}, which is not installed")
    tried.write()

    run_on_both(parse_text(tried.net, NetParameter), device, dtype, {}, tried.phase, tried.prepare)


def net_of(case: LayerCase) -> tuple[NetParameter, dict[str, np.ndarray]]:
    """Return a net of one layer with an input for each bottom, and the inputs."""
    param = NetParameter()
    param.force_backward = layer_metadata(case.type).gradient == "gradient"
    layer = parse_text(case.text, LayerParameter)
    layer.name = "layer"
    if not layer.bottom:
        layer.bottom.extend(f"bottom{i}" for i in range(len(case.bottoms)))
    if not layer.top:
        one = make_layer(case.text, case.bottoms, phase=case.phase, device="numpy")
        layer.top.extend(f"top{i}" for i in range(len(one.top)))
    inputs = dict(zip(layer.bottom, case.bottoms, strict=True))
    for name, value in inputs.items():
        added = param.layer.add(name=name, type="Input", top=[name])
        added.input_param.shape.add(dim=value.shape)
    param.layer.append(layer)
    return param, inputs

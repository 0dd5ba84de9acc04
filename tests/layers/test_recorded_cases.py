"""Every single-layer and small-net case recorded from Caffe, forward and backward."""

import pytest
from goldens import golden_layers


@pytest.mark.parametrize("case", golden_layers(), ids=str)
def test_layer_matches_caffe(case, backend):
    net = case.net(device=backend)

    case.run(net)

    case.check(net, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("case", golden_layers(), ids=str)
def test_portable_code_matches_caffe(case):
    net = case.net(device="numpy", lowered=False)

    case.run(net)

    case.check(net, rtol=1e-4, atol=1e-6)

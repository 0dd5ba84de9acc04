"""Every single-layer and small-net case recorded from Caffe, in both precisions."""

import pytest
from goldens import golden_layers

PRECISIONS = pytest.mark.parametrize("dtype", ["float32", "float64"])


@PRECISIONS
@pytest.mark.parametrize("case", golden_layers(), ids=str)
def test_layer_matches_caffe(case, dtype, backend):
    net = case.net(device=backend, dtype=dtype)

    case.run(net)

    case.check(net, rtol=1e-4, atol=1e-6)


@PRECISIONS
@pytest.mark.parametrize("case", golden_layers(), ids=str)
def test_portable_code_matches_caffe(case, dtype):
    net = case.net(device="numpy", dtype=dtype, optimize=False)

    case.run(net)

    case.check(net, rtol=1e-4, atol=1e-6)

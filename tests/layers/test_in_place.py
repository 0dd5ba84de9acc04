"""Layers that overwrite a bottom which their gradients need."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import ErrorCode, NetError
from demitasse.testing import make_layer

RNG = np.random.default_rng(0)
X, STEPS = RNG.standard_normal((3, 4)), RNG.standard_normal((3, 2, 4))
FILLER = 'weight_filler { type: "gaussian" }'
PRODUCT = f'type: "InnerProduct" inner_product_param {{ num_output: 4 {FILLER} }}'
SEQUENCE = f"recurrent_param {{ num_output: 4 {FILLER} }}"

CASES = {
    PRODUCT: [X],
    f'type: "LSTM" {SEQUENCE}': [STEPS, np.ones((3, 2))],
    f'type: "RNN" {SEQUENCE}': [STEPS, np.ones((3, 2))],
    'type: "LSTMUnit"': [STEPS[:1], RNG.standard_normal((1, 2, 16)), np.ones((1, 2))],
}


@pytest.mark.parametrize("text", CASES)
def test_in_place_it_computes_but_has_no_gradient(text):
    bottoms = CASES[text]
    tops = 'top: "x" top: "h"' if "LSTMUnit" in text else 'top: "x"'
    names = " ".join(f'bottom: "{name}"' for name in ("x", "y", "z")[: len(bottoms)])
    want = make_layer(text, bottoms).forward()
    one = make_layer(f"{text} {names} {tops}", bottoms)

    got = one.forward()

    np.testing.assert_array_equal(got[0], want[0])
    with expect_error(NetError, ErrorCode.CONFLICT, blob="x"):
        one.backward(*got)


def test_a_product_with_a_frozen_weight_has_its_gradient_in_place():
    apart, one = (make_layer(f"{PRODUCT} {names}", [X]) for names in ("", 'bottom: "x" top: "x"'))
    for each in (apart, one):
        each.layer.set_param_propagate_down(0, False)

    [want] = apart.backward(*apart.forward())
    [got] = one.backward(*one.forward())

    np.testing.assert_array_equal(got, want)

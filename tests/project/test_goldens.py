"""The readers of the recorded cases notice what is wrong."""

import numpy as np
import pytest
from expect_error import expect_error
from goldens import GOLDENS, error, expect_close, golden_layers, golden_rules, golden_solvers


def test_error_is_relative_to_the_largest_recorded_value():
    assert error([1.0, 100.1], [1.0, 100.0]) == pytest.approx(0.001)


def test_error_of_tiny_values_is_not_blown_up():
    assert error([2e-9], [1e-9]) == pytest.approx(1e-6)


@pytest.mark.parametrize("got", [[1.0, 2.0, 3.0], [np.nan, 2.0], [np.inf, 2.0]])
def test_error_is_infinite_where_values_cannot_be_compared(got):
    assert error(got, [1.0, 2.0]) == np.inf


def test_recorded_infinities_must_be_met():
    assert error([np.inf, 1.0], [np.inf, 1.0]) == 0
    assert error([5.0, 1.0], [np.inf, 1.0]) == np.inf


def test_every_wrong_array_is_named():
    want = {"out/y": np.ones(2), "din/x": np.ones(2), "dparam/ip/0": np.ones(2)}

    with expect_error(AssertionError, mentions=["din/x", "(3,)", "(2,)", "dparam/ip/0"]) as failure:
        expect_close({"out/y": np.ones(2), "din/x": np.ones(3)}, want, rtol=1e-4, atol=1e-5)

    assert "out/y" not in str(failure.value)


def test_a_difference_beyond_the_tolerance_fails():
    with expect_error(AssertionError, mentions="0.01"):
        expect_close({"y": np.array([1.01])}, {"y": np.array([1.0])}, rtol=1e-4, atol=1e-5)


def test_cases_can_be_chosen_by_layer_type():
    chosen = golden_layers("LSTM", "RNN")

    assert chosen
    assert all({"LSTM", "RNN"} & set(case.types) for case in chosen)
    assert len(golden_layers()) > len(chosen)


def test_a_case_expects_results_and_not_what_it_was_given():
    [case] = [case for case in golden_layers() if case.name == "batchnorm_train"]

    heads = {key.partition("/")[0] for key in case.expected}

    assert case.forwards == 3
    assert heads == {"out", "out0", "out1", "out2", "param_after", "din", "dparam"}


def test_every_recorded_file_is_part_of_a_case():
    files = {
        folder: {path.name.partition(".")[0] for path in (GOLDENS / folder).glob(pattern)}
        for folder, pattern in (
            ("layers", "*.npz"), ("rules", "*.prototxt"), ("solvers", "*.solver.prototxt"),
        )
    }  # fmt: skip

    assert all(files.values())
    assert files["layers"] == {case.name for case in golden_layers()}
    assert files["rules"] == {case.name for case in golden_rules()}
    assert files["solvers"] == {case.name for case in golden_solvers()}
    assert all(case.restored != other.restored for case, other in zip(
        golden_solvers()[::2], golden_solvers()[1::2], strict=True))  # fmt: skip

"""Learning rates by their formulas, and what is refused."""

import math

import pytest
from expect_error import expect_error
from hypothesis import given
from hypothesis import strategies as st

from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.proto import SolverParameter, parse_text
from demitasse.training.lr_policies import check_policy, learning_rate


def param(text: str) -> SolverParameter:
    return parse_text(f"base_lr: 0.5 {text}", SolverParameter)


def rates(text: str, iterations: list[int]) -> list[float]:
    return [learning_rate(param(text), i)[0] for i in iterations]


def test_fixed_stays():
    assert rates('lr_policy: "fixed"', [0, 7, 10**6]) == [0.5, 0.5, 0.5]


def test_step_falls_every_stepsize_iterations():
    got = rates('lr_policy: "step" gamma: 0.5 stepsize: 10', [0, 9, 10, 19, 20])

    assert got == [0.5, 0.5, 0.25, 0.25, 0.125]


def test_step_says_which_step_it_is_in():
    assert learning_rate(param('lr_policy: "step" gamma: 0.5 stepsize: 10'), 35) == (0.0625, 3)


def test_exp_falls_every_iteration():
    assert rates('lr_policy: "exp" gamma: 0.5', [0, 1, 3]) == [0.5, 0.25, 0.0625]


def test_inv_is_lenets_policy():
    got = rates('lr_policy: "inv" gamma: 0.0001 power: 0.75', [0, 100, 5000])

    assert got == pytest.approx([0.5, 0.5 * 1.01**-0.75, 0.5 * 1.5**-0.75], rel=1e-6)


def test_poly_reaches_zero_at_max_iter():
    got = rates('lr_policy: "poly" power: 2 max_iter: 10', [0, 5, 10])

    assert got == pytest.approx([0.5, 0.125, 0.0])


def test_sigmoid_is_half_at_stepsize():
    got = rates('lr_policy: "sigmoid" gamma: 0.1 stepsize: 50', [0, 50, 1000])

    assert got == pytest.approx([0.5 / (1 + math.exp(5)), 0.25, 0.5], rel=1e-6)


def test_sigmoid_far_before_stepsize_is_as_good_as_zero():
    [rate] = rates('lr_policy: "sigmoid" gamma: 10 stepsize: 1000000', [0])

    assert 0 <= rate < 1e-100


def test_multistep_goes_up_when_a_stepvalue_is_reached():
    fields = param('lr_policy: "multistep" gamma: 0.5 stepvalue: 2 stepvalue: 5')
    step, got = 0, []
    for iteration in range(7):
        rate, step = learning_rate(fields, iteration, step)
        got.append(rate)

    assert got == [0.5, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125]


def test_multistep_takes_one_step_at_a_time_when_it_begins_late():
    fields = param('lr_policy: "multistep" gamma: 0.5 stepvalue: 2 stepvalue: 5')

    first, step = learning_rate(fields, 100, 0)
    second, _ = learning_rate(fields, 101, step)

    assert (first, second) == (0.25, 0.125)


@given(st.sampled_from(["fixed", "step", "exp", "inv", "sigmoid", "poly"]), st.integers(0, 999))
def test_the_rate_depends_on_the_iteration_alone(policy, iteration):
    fields = param(f'lr_policy: "{policy}" gamma: 0.9 power: 0.5 stepsize: 100 max_iter: 1000')

    assert learning_rate(fields, iteration, 0)[0] == learning_rate(fields, iteration, 5)[0]


@pytest.mark.parametrize(
    ("text", "code", "field", "mentions"),
    [
        ("", ErrorCode.MISSING, "lr_policy", "fixed, step"),
        ('lr_policy: "steps"', ErrorCode.UNKNOWN, "lr_policy", ["'step'?", "fixed, step"]),
        ('lr_policy: "step" gamma: 0.1', ErrorCode.OUT_OF_RANGE, "stepsize", "'step'"),
        ('lr_policy: "step" gamma: 0.1 stepsize: -5', ErrorCode.OUT_OF_RANGE, "stepsize", "-5"),
        ('lr_policy: "sigmoid" gamma: 0.1', ErrorCode.OUT_OF_RANGE, "stepsize", "'sigmoid'"),
        ('lr_policy: "step" gamma: -1 stepsize: 5', ErrorCode.OUT_OF_RANGE, "gamma", "-1"),
        ('lr_policy: "exp" gamma: -1', ErrorCode.OUT_OF_RANGE, "gamma", "'exp'"),
        ('lr_policy: "inv" gamma: -1', ErrorCode.OUT_OF_RANGE, "gamma", "'inv'"),
        ('lr_policy: "multistep" gamma: -1', ErrorCode.OUT_OF_RANGE, "gamma", "'multistep'"),
        ('lr_policy: "sigmoid" gamma: -1 stepsize: 5', ErrorCode.OUT_OF_RANGE, "gamma", "-1"),
        ('lr_policy: "exp" gamma: nan', ErrorCode.OUT_OF_RANGE, "gamma", "nan"),
        ('lr_policy: "poly" power: 1', ErrorCode.MISSING, "max_iter", "'poly'"),
    ],
)
def test_refusal_names_the_field(text, code, field, mentions):
    with expect_error(ConfigError, code, mentions=mentions, field=field):
        check_policy(param(text))


def test_base_lr_is_needed():
    with expect_error(ConfigError, ErrorCode.MISSING, field="base_lr"):
        check_policy(parse_text('lr_policy: "fixed"', SolverParameter))


def test_poly_ends_at_max_iter():
    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field="max_iter", iteration=11):
        learning_rate(param('lr_policy: "poly" power: 0.5 max_iter: 10'), 11)


@pytest.mark.parametrize("text", ["exp' gamma: 10", "poly' power: -1 max_iter: 400"])
def test_a_rate_that_is_not_finite_is_refused(text):
    with expect_error(ConfigError, ErrorCode.NOT_FINITE, iteration=400):
        learning_rate(param(f"lr_policy: '{text}"), 400)


def test_a_negative_base_lr_is_taken_as_it_is():
    fields = param('lr_policy: "step" gamma: 0.5 stepsize: 1')
    fields.base_lr = -0.5

    assert [learning_rate(fields, i)[0] for i in (0, 1)] == [-0.5, -0.25]


# -- those of forks, and our own ---------------------------------------------------------------


def test_cosine_falls_by_half_a_wave_to_min_lr():
    text = 'lr_policy: "cosine" max_iter: 100 min_lr: 0.25'

    got = rates(text, [0, 25, 50, 75, 100, 1000])

    quarter = 0.25 + 0.125 * (1 + math.cos(math.pi / 4))
    assert got == pytest.approx([0.5, quarter, 0.375, 0.75 - quarter, 0.25, 0.25])


def test_cosine_begins_where_the_warm_up_ends():
    got = rates('lr_policy: "cosine" max_iter: 110 warmup_iter: 10', [10, 60, 110])

    assert got == pytest.approx([0.5, 0.25, 0.0])


def test_intels_warm_up_is_a_straight_line():
    text = 'lr_policy: "fixed" warmup_iter: 4 warmup_start_lr: 0.1'

    assert rates(text, [0, 1, 2, 4, 9]) == pytest.approx([0.1, 0.2, 0.3, 0.5, 0.5])


def test_nvcaffes_ramp_is_quadratic():
    text = 'lr_policy: "fixed" rampup_interval: 4 rampup_lr: 0.1'

    assert rates(text, [0, 1, 2, 4]) == pytest.approx([0.1, 0.125, 0.2, 0.5])


def test_a_ramp_leaves_the_step_alone():
    text = 'lr_policy: "multistep" gamma: 0.5 stepvalue: 1 warmup_iter: 3'

    assert learning_rate(param(text), 2, 0)[1] == 0
    assert learning_rate(param(text), 3, 0) == (0.25, 1)


def test_no_policy_goes_below_min_lr():
    assert rates('lr_policy: "exp" gamma: 0.5 min_lr: 0.25', [0, 1, 2, 50]) == [
        0.5,
        0.25,
        0.25,
        0.25,
    ]


def test_poly_falls_to_min_lr_as_in_nvcaffe():
    got = rates('lr_policy: "poly" power: 1 max_iter: 10 min_lr: 0.1', [0, 5, 10])

    assert got == pytest.approx([0.5, 0.3, 0.1])


def test_multifixed_takes_the_rate_of_the_stage():
    fields = SolverParameter(lr_policy="multifixed", stagelr=[0.5, 0.25], stageiter=[10, 20])

    got = [learning_rate(fields, i)[0] for i in (0, 10, 11, 20, 21)]

    assert got == [0.5, 0.5, 0.25, 0.25, 0.25]


def test_plateau_multiplies_by_gamma_in_every_step():
    fields = param('lr_policy: "plateau" gamma: 0.5 plateau_winsize: 10 plateau_winsize: 10')

    assert [learning_rate(fields, 5, step)[0] for step in (0, 1, 2)] == [0.5, 0.25, 0.125]


@pytest.mark.parametrize(
    ("text", "code", "field", "mentions"),
    [
        ('lr_policy: "cosine"', ErrorCode.MISSING, "max_iter", "'cosine'"),
        ('lr_policy: "plateau" gamma: 0.1', ErrorCode.MISSING, "plateau_winsize", "'plateau'"),
        (
            'lr_policy: "plateau" gamma: 0.1 plateau_winsize: 0',
            ErrorCode.MISSING,
            "plateau_winsize",
            "1",
        ),
        (
            'lr_policy: "plateau" gamma: -1 plateau_winsize: 1',
            ErrorCode.OUT_OF_RANGE,
            "gamma",
            "-1",
        ),
        ('lr_policy: "fixed" min_lr: -1', ErrorCode.OUT_OF_RANGE, "min_lr", "-1"),
        ('lr_policy: "fixed" min_lr: nan', ErrorCode.OUT_OF_RANGE, "min_lr", "nan"),
        ('lr_policy: "fixed" min_lr: 1', ErrorCode.OUT_OF_RANGE, "min_lr", ["1", "base_lr", "0.5"]),
        ('lr_policy: "fixed" warmup_iter: -1', ErrorCode.OUT_OF_RANGE, "warmup_iter", "-1"),
        (
            'lr_policy: "fixed" warmup_iter: 1 rampup_interval: 1',
            ErrorCode.CONFLICT,
            "rampup_interval",
            "warmup_iter",
        ),
        ('lr_policy: "multifixed"', ErrorCode.COUNT_MISMATCH, "stagelr", "stageiter"),
        (
            'lr_policy: "multifixed" stagelr: [1, 2] stageiter: [2, 1]',
            ErrorCode.COUNT_MISMATCH,
            "stagelr",
            ["[1.0, 2.0]", "[2, 1]"],
        ),
    ],
)
def test_fields_of_the_further_policies_are_checked(text, code, field, mentions):
    with expect_error(ConfigError, code, mentions=mentions, field=field):
        check_policy(param(text))

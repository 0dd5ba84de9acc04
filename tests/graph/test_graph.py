"""Filtering, splitting and wiring, on messages alone."""

import pytest
from expect_error import expect_error

from demitasse.errors import ErrorCode, NetError
from demitasse.graph import (
    LayerSetup,
    Param,
    append_params,
    compute_backward_needs,
    filter_net,
    insert_splits,
    moved_weights,
    state_meets_rule,
    wire,
)
from demitasse.io.proto import LayerParameter, NetParameter, NetState, NetStateRule, parse_text


def net(text: str) -> NetParameter:
    return parse_text(text, NetParameter)


def chain(*layers: str) -> NetParameter:
    """Layers written as ``name: bottom, bottom -> top, top``; the type is the name."""
    made = NetParameter()
    for layer in layers:
        name, _, ends = layer.partition(": ")
        bottoms, _, tops = ends.partition("->")
        made.layer.append(
            LayerParameter(
                name=name,
                type=name,
                bottom=[b.strip() for b in bottoms.split(",") if b.strip()],
                top=[t.strip() for t in tops.split(",") if t.strip()],
            )
        )
    return made


# -- filter ------------------------------------------------------------------------------------

STATE = NetState(phase=0, level=2, stage=["a", "b"])


@pytest.mark.parametrize(
    ("rule", "met"),
    [
        ({}, True),
        ({"phase": 0}, True),
        ({"phase": 1}, False),
        ({"min_level": 2}, True),
        ({"min_level": 3}, False),
        ({"max_level": 2}, True),
        ({"max_level": 1}, False),
        ({"min_level": 1, "max_level": 3}, True),
        ({"stage": ["a"]}, True),
        ({"stage": ["a", "b"]}, True),
        ({"stage": ["a", "c"]}, False),
        ({"not_stage": ["c"]}, True),
        ({"not_stage": ["c", "b"]}, False),
        ({"phase": 0, "stage": ["a"], "not_stage": ["c"], "min_level": 0}, True),
    ],
)
def test_a_rule_is_met_when_all_it_says_holds(rule, met):
    assert state_meets_rule(STATE, NetStateRule(**rule)) is met


def test_include_needs_one_rule_and_exclude_must_miss_all():
    message = net("""
        state { phase: TEST }
        layer { name: "always" }
        layer { name: "in" include { phase: TRAIN } include { phase: TEST } }
        layer { name: "not in" include { phase: TRAIN } }
        layer { name: "not out" exclude { phase: TRAIN } }
        layer { name: "out" exclude { stage: "x" } exclude { phase: TEST } }
    """)

    filtered, kept = filter_net(message)

    assert [layer.name for layer in filtered.layer] == ["always", "in", "not out"]
    assert kept == [0, 1, 3]
    assert len(message.layer) == 5


def test_layers_with_both_kinds_of_rules_are_all_named():
    message = net("""
        layer { name: "p" include { phase: TRAIN } exclude { phase: TEST } }
        layer { name: "q" include { phase: TRAIN } exclude { phase: TEST } }
    """)

    with expect_error(NetError, ErrorCode.CONFLICT, mentions=["'p'", "'q'"]):
        filter_net(message)


# -- splits ------------------------------------------------------------------------------------


def shown(message: NetParameter) -> list[str]:
    return [f"{x.name}: {', '.join(x.bottom)} -> {', '.join(x.top)}" for x in message.layer]


def test_a_blob_with_one_reader_is_left_alone():
    message = chain("d: -> x", "f: x -> y")

    split, origin = insert_splits(message)

    assert split == message
    assert origin == [0, 1]


def test_each_reader_gets_a_copy_in_order_of_use():
    split, origin = insert_splits(chain("d: -> x, z", "f: z, x -> y", "g: x -> w"))

    assert shown(split) == [
        "d:  -> x, z",
        "x_d_0_split: x -> x_d_0_split_0, x_d_0_split_1",
        "f: z, x_d_0_split_0 -> y",
        "g: x_d_0_split_1 -> w",
    ]
    assert origin == [0, -1, 1, 2]


def test_versions_of_a_name_used_in_place_count_for_themselves():
    split, _ = insert_splits(
        chain("d: -> x", "relu: x -> x", "f: x -> y", "g: x -> z", "again: z -> z")
    )

    assert shown(split) == [
        "d:  -> x",
        "relu: x -> x",
        "x_relu_0_split: x -> x_relu_0_split_0, x_relu_0_split_1",
        "f: x_relu_0_split_0 -> y",
        "g: x_relu_0_split_1 -> z",
        "again: z -> z",
    ]


def test_a_loss_weight_is_a_use_and_moves_to_the_first_copy():
    message = chain("d: -> x", "f: x -> y", "g: y -> z")
    message.layer[1].loss_weight.append(0.5)

    split, _ = insert_splits(message)

    assert shown(split)[2:] == [
        "y_f_0_split: y -> y_f_0_split_0, y_f_0_split_1",
        "g: y_f_0_split_1 -> z",
    ]
    assert list(split.layer[1].loss_weight) == []
    assert list(split.layer[2].loss_weight) == [0.5, 0]


def test_weights_that_move_are_those_of_tops_that_are_read():
    message = chain("d: -> x, y", "f: x -> z", "f: z -> z")
    message.layer[0].loss_weight.extend([2, 3])
    message.layer[1].loss_weight.append(4)
    message.layer[2].loss_weight.append(5)

    assert list(moved_weights(message)) == [(0, 0), (1, 0)]


def test_unknown_bottoms_are_all_named_with_what_to_do():
    message = chain("f: a, b -> c", "g: -> b")

    faults = [{"layer": "f", "blob": "a"}, {"layer": "f", "blob": "b"}]
    with expect_error(NetError, ErrorCode.UNKNOWN, mentions="'g'", faults=faults):
        insert_splits(message)


def test_names_are_compared_for_listed_faults_alone(monkeypatch):
    compared = []
    monkeypatch.setattr("demitasse.core.text.nearest", lambda name, _: compared.append(name))

    with expect_error(NetError, ErrorCode.UNKNOWN, mentions="280 more"):
        insert_splits(chain(*(f"f{i}: a{i} -> b{i}" for i in range(300))))

    assert compared == [f"a{i}" for i in range(20)]


# -- wire --------------------------------------------------------------------------------------


def wired(message: NetParameter, needed: list[int] | None = None):
    return wire(message, needed or [0] * len(message.layer))


def test_blobs_are_numbered_as_they_appear_and_outputs_sorted_by_name():
    graph = wired(chain("d: -> z, b", "relu: z -> z", "f: z -> y", "g: -> B"))

    assert graph.blobs == ("z", "b", "y", "B")
    assert [node.tops for node in graph.nodes] == [(0, 1), (0,), (2,), (3,)]
    assert [graph.blobs[i] for i in graph.outputs] == ["B", "b", "y"]


def test_made_up_tops_can_be_read_by_nobody():
    graph = wired(chain("d: -> x", "loss: x ->"), [0, 1])

    assert graph.blobs == ("x", "(automatic)")
    assert graph.nodes[1].tops == (1,)
    assert graph.outputs == ()


def test_tops_of_input_layers_are_net_inputs():
    message = chain("Input: -> x, y", "f: x, y -> z")

    graph = wired(message)

    assert [graph.blobs[i] for i in graph.inputs] == ["x", "y"]


def test_wiring_faults_are_named_together():
    message = chain("d: -> x", "e: -> x", "f: x, x -> y")
    message.layer[2].propagate_down.append(True)

    with pytest.raises(NetError) as caught:
        wired(message)

    assert caught.value.details["faults"] == [
        {"layer": "e", "blob": "x"},
        {"layer": "f", "field": "propagate_down", "got": 1, "expected": 2},
        {"layer": "f", "blob": "x"},
    ]
    assert str(caught.value).count("\n") == 2


def test_readers_of_a_top_that_is_produced_twice_are_not_named():
    message = chain("d: -> x", "e: x -> y", "f: -> x", "g: x -> z")

    with expect_error(NetError, ErrorCode.DUPLICATE, layer="f", blob="x"):
        wired(message)


# -- who needs backward ------------------------------------------------------------------------

PARAM = LayerSetup(params=(True,))
PLAIN = LayerSetup()
LOSS = LayerSetup(losses=(True,))


def needs(message: NetParameter, facts: list[LayerSetup], *, force: bool = False):
    return compute_backward_needs(wired(message), facts, force)


def test_layers_between_a_parameter_and_a_loss_take_part():
    message = chain("d: -> x", "f: x -> y", "g: y -> z", "loss: z -> l")

    found = needs(message, [PLAIN, PARAM, PLAIN, LOSS])

    assert found.layers == [False, True, True, True]
    assert found.bottoms == [[], [False], [True], [True]]
    assert found.blobs == [False, True, True, True]


def test_a_branch_without_a_loss_drops_out():
    message = chain("d: -> x, u", "f: x -> y", "side: u -> v", "loss: y -> l")

    found = needs(message, [PLAIN, PARAM, PARAM, LOSS])

    assert found.layers == [False, True, False, True]


def test_propagate_down_decides_for_the_blob_not_for_the_layer():
    message = chain("d: -> x", "f: x -> y", "g: y -> z", "loss: z -> l")
    message.layer[2].propagate_down.append(False)

    found = needs(message, [PLAIN, PARAM, PARAM, LOSS])

    assert found.layers == [False, False, True, True]
    assert found.bottoms[2] == [False]


def test_a_frozen_layer_lets_gradients_through():
    message = chain("d: -> x", "f: x -> y", "g: y -> z", "loss: z -> l")

    found = needs(message, [PLAIN, PARAM, LayerSetup(params=(False, False)), LOSS])

    assert found.layers == [False, True, True, True]
    assert found.params[2] == [False, False]


def test_force_brings_everything_back():
    message = chain("d: -> x, t", "f: x -> y", "loss: y, t -> l")
    facts = [
        PLAIN,
        LayerSetup(params=(False,), allow_force=(True,)),
        LayerSetup(losses=(True,), allow_force=(True, False)),
    ]

    found = needs(message, facts, force=True)

    assert found.layers == [True, True, True]
    assert found.bottoms == [[], [True], [True, False]]
    assert found.params[1] == [True]


# -- parameters --------------------------------------------------------------------------------


def params_of(*layers: tuple[str, list[tuple[int, ...]]]) -> list[Param]:
    """Each layer as the text of its ``param`` fields and the shapes of its parameters."""
    made = []
    for index, (text, own) in enumerate(layers):
        append_params(made, index, parse_text(text or "name: ''", LayerParameter), own)
    return made


def test_anonymous_parameters_are_their_own():
    made = params_of(("", [(2, 3), (2,)]), ("param { lr_mult: 2 } ", [(4,)]))

    assert [p.owner for p in made] == [None] * 3
    assert [p.display_name for p in made] == ["0", "1", "0"]
    assert [(p.number, p.layer, p.index) for p in made] == [(0, 0, 0), (1, 0, 1), (2, 1, 0)]
    assert [(p.lr_mult, p.decay_mult) for p in made] == [(1, 1), (1, 1), (2, 1)]
    assert [p.given for p in made] == [set(), set(), {"lr_mult"}]


def test_a_name_seen_before_is_shared_and_may_set_what_the_owner_did_not():
    owner, sharer, third = params_of(
        ('param { name: "w" decay_mult: 3 }', [(2, 3)]),
        ('param { name: "w" lr_mult: 5 }', [(2, 3)]),
        ('param { name: "w" lr_mult: 5 }', [(2, 3)]),
    )

    assert owner.owner is None
    assert sharer.owner is third.owner is owner
    assert (owner.lr_mult, owner.decay_mult) == (5, 3)


def test_permissive_sharing_compares_counts():
    made = params_of(
        ('param { name: "w" }', [(2, 3)]),
        ('param { name: "w" share_mode: PERMISSIVE }', [(6,)]),
    )

    assert made[1].owner is made[0]


@pytest.mark.parametrize(
    ("first", "second", "shape", "code", "got"),
    [
        ('name: "w"', 'name: "w"', (3, 2), ErrorCode.SHAPE_MISMATCH, (3, 2)),
        ('name: "w"', 'name: "w" share_mode: PERMISSIVE', (5,), ErrorCode.COUNT_MISMATCH, 5),
        ('name: "w" lr_mult: 1', 'name: "w" lr_mult: 2', (2, 3), ErrorCode.CONFLICT, 2),
        ('name: "w" decay_mult: 1', 'name: "w" decay_mult: 0', (2, 3), ErrorCode.CONFLICT, 0),
    ],
)
def test_sharers_that_do_not_fit_are_refused(first, second, shape, code, got):
    with expect_error(NetError, code, param="w", got=got):
        params_of((f"param {{ {first} }}", [(2, 3)]), (f"param {{ {second} }}", [shape]))


@pytest.mark.parametrize(("shape", "advised"), [((3, 2), True), ((5, 2), False)])
def test_permissive_sharing_is_advised_where_counts_are_equal(shape, advised):
    with expect_error(NetError, ErrorCode.SHAPE_MISMATCH) as caught:
        params_of(('param { name: "w" }', [(2, 3)]), ('param { name: "w" }', [shape]))

    assert ("PERMISSIVE" in str(caught.value)) is advised


def test_more_specs_than_parameters_are_refused():
    with expect_error(NetError, ErrorCode.COUNT_MISMATCH, got=2, expected=1):
        params_of(("param { } param { }", [(2,)]))

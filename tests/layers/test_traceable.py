"""Layers that a library may trace: those of the catalogue, and users' layers that say so."""

from demitasse.layers.base import Layer
from demitasse.layers.registry import CATALOG, layer_class, register_layer, unregister
from demitasse.testing import make_layer
from demitasse.testing.layer_cases import CASES, OTHER_CASES


def test_each_type_of_the_catalogue_is_traceable():
    for name in CATALOG:
        kind = layer_class(name)
        if isinstance(kind, type):
            assert vars(kind)["traceable"], name


def test_each_layer_of_the_cases_is_traceable_or_runs_on_the_host():
    for tables in (CASES, OTHER_CASES):
        for case in (case for cases in tables.values() for case in cases):
            layer = make_layer(case.text, case.bottoms, phase=case.phase, device="numpy").layer
            declared = vars(type(layer)).get("traceable", False)
            assert declared or layer.dynamic_shapes, case


def test_users_layers_are_not():
    class Own(layer_class("ReLU")):
        graph_capturable = True

    try:
        register_layer("TraceableOwn")(Own)
        assert not Own.traceable
        assert "traceable" not in vars(type("Unregistered", (layer_class("ReLU"),), {}))
        assert not Layer.traceable
    finally:
        unregister("TraceableOwn")

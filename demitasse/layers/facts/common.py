"""Facts that layers of several families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from demitasse.io.proto import LayerParameter
from demitasse.layers.facts.kinds import ALWAYS, IN_PLACE, ParamFacts, Read, When, field_of, unless

__all__ = [
    "BOTH",
    "BOTTOMS",
    "ELSEWHERE",
    "ONE_BOTTOM",
    "TOPS",
    "WEIGHED",
    "constant",
    "flag",
    "product_params",
]

# -- conditions --------------------------------------------------------------------------------

ELSEWHERE = unless(IN_PLACE)
ONE_BOTTOM = When("with one bottom", lambda param, phase: len(param.bottom) <= 1)


def flag(path: str) -> When:
    """Return the condition that a field is true, e.g. "eltwise_param.stable_prod_grad"."""
    name = path.partition(".")[2]
    return When(f"with `{name}`", lambda param, phase: field_of(param, path))


# -- what backward reads -----------------------------------------------------------------------

BOTTOMS: Mapping[Read, When] = {"bottoms": ALWAYS}
TOPS: Mapping[Read, When] = {"tops": ALWAYS}
BOTH: Mapping[Read, When] = {"bottoms": ALWAYS, "tops": ALWAYS}
WEIGHED: Mapping[Read, When] = {"bottoms": ALWAYS, "params": ALWAYS}

# -- parameters and work -----------------------------------------------------------------------


def product_params(message: str) -> tuple[ParamFacts, ...]:
    """Return a weight and, with ``bias_term``, a bias."""
    return (
        ParamFacts("weight", "weight", f"{message}.weight_filler"),
        ParamFacts("bias", "bias", f"{message}.bias_filler", flag(f"{message}.bias_term")),
    )


def constant(count: int) -> Callable[[LayerParameter, str], int]:
    """Return ``per_value`` of a layer that always makes so many multiplications."""
    return lambda param, phase: count

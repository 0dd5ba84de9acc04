"""Cases of generated nets: a net, and the passes that are run on it.

A case is immutable and can be written as JSON, so that it travels to a child process and into a
report. Its net can be printed as a prototxt.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Case", "Input", "Layer", "NetSpec", "Scenario", "case_from_json", "case_to_json"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Input:
    """An input blob.

    Attributes:
        name: Name of the blob.
        shape: Its shape.
        kind: Rule for its values: "noise", "positive", "cont", "rois", "labels:K" and "index:K" for
            whole numbers below K.
    """

    name: str
    shape: Shape
    kind: str = "noise"


@dataclass(frozen=True)
class Layer:
    """A layer of the prototxt; ``fields`` are its messages, nested dicts of names and values."""

    name: str
    type: str
    bottoms: tuple[str, ...]
    tops: tuple[str, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NetSpec:
    """Inputs and layers of a net.

    Attributes:
        force_backward: Whether gradients of the inputs are asked for. Other kernels run then.
    """

    inputs: tuple[Input, ...]
    layers: tuple[Layer, ...]
    force_backward: bool = False

    def prototxt(self) -> str:
        """Return the text of the net."""
        lines = ["force_backward: true"] if self.force_backward else []
        for one in self.inputs:
            shape = " ".join(f"dim: {size}" for size in one.shape)
            lines.append(
                f'layer {{ name: "input_{one.name}" type: "Input" top: "{one.name}" '
                f"input_param {{ shape {{ {shape} }} }} }}  # {one.kind}"
            )
        lines += [_layer_text(layer) for layer in self.layers]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Scenario:
    """The passes that are run on a net.

    Attributes:
        phase: "TEST" or "TRAIN".
        keep: Blobs to keep: None, "outputs" or names.
        steps: Pairs of an action and its argument, in order:
            ("threads", n): set the number of threads;
            ("shape", i): reshape the inputs to ``shapes[i]``; -1 for the declared shapes;
            ("device", name): move the net;
            ("forward", v): run forward on the inputs' values number ``v``;
            ("backward", v): run forward and backward;
            ("train", v): run forward and backward, and update the parameters;
            ("predict", v): call ``predict``;
            ("other", v): run the companion net forward;
            ("tested", v): run a net for TEST forward that shares the parameters;
            ("hook", v), ("thread", v): run forward with a callback, or in another thread;
            ("beside", v): run forward while another thread runs the companion net;
            ("ended", v), ("failing", v): end a pass at a layer by argument, or by an exception, and
            run forward;
            ("parts", v): run forward to a layer, and then the rest, for odd v after a change of
            the layer's top;
            ("edit", v): change a parameter in one of several ways;
            ("snapshot", v), ("restore", v): keep and restore the state of a solver;
            ("clone", 0): go on with a clone of the net;
            ("jit", n), ("winograd", n): switch a setting off or on.
        shapes: Other shapes of the inputs.
        feed: "data" writes to the blobs' arrays, "set_input" calls that method.
        read_all: Whether all kept blobs are compared after each pass, or outputs alone, and the
            others after the last pass.
        solver: Type of the solver that trains the net; "" updates parameters by ``Net.update``.
        batches: Backward passes whose gradients are added up before an update.
    """

    phase: str
    keep: str | tuple[str, ...] | None
    steps: tuple[tuple[str, int | str], ...]
    shapes: tuple[Mapping[str, Shape], ...] = ()
    feed: str = "data"
    read_all: bool = False
    solver: str = ""
    batches: int = 1


@dataclass(frozen=True)
class Case:
    """A net, the passes on it, and a net that runs in between.

    Attributes:
        name: How the generator made it, as "large 17" or "pair small 3".
        seed: Seed of the values of inputs and parameters.
    """

    name: str
    seed: int
    net: NetSpec
    scenario: Scenario
    other: NetSpec | None = None


def case_to_json(case: Case) -> str:
    """Return a case as one line of JSON."""
    return json.dumps(asdict(case))


def case_from_json(text: str) -> Case:
    """Return the case that ``case_to_json`` wrote."""
    found = json.loads(text)
    scenario = found["scenario"]
    keep = scenario["keep"]
    scenario["keep"] = tuple(keep) if isinstance(keep, list) else keep
    scenario["steps"] = tuple((action, value) for action, value in scenario["steps"])
    scenario["shapes"] = tuple(
        {name: tuple(shape) for name, shape in shapes.items()} for shapes in scenario["shapes"]
    )
    other = found["other"]
    return Case(
        found["name"],
        found["seed"],
        _net_from(found["net"]),
        Scenario(**scenario),
        None if other is None else _net_from(other),
    )


def _net_from(found: Mapping[str, Any]) -> NetSpec:
    inputs = tuple(Input(i["name"], tuple(i["shape"]), i["kind"]) for i in found["inputs"])
    layers = tuple(
        Layer(x["name"], x["type"], tuple(x["bottoms"]), tuple(x["tops"]), x["fields"])
        for x in found["layers"]
    )
    return NetSpec(inputs, layers, found["force_backward"])


def _layer_text(layer: Layer) -> str:
    parts = [f'name: "{layer.name}" type: "{layer.type}"']
    parts += [f'bottom: "{name}"' for name in layer.bottoms]
    parts += [f'top: "{name}"' for name in layer.tops]
    parts += _fields_text(layer.fields)
    return f"layer {{ {' '.join(parts)} }}"


def _fields_text(fields: Mapping[str, Any]) -> list[str]:
    parts = []
    for name, value in fields.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(one, Mapping):
                parts.append(f"{name} {{ {' '.join(_fields_text(one))} }}")
            elif isinstance(one, bool):
                parts.append(f"{name}: {str(one).lower()}")
            elif isinstance(one, str) and not one.isupper():
                parts.append(f'{name}: "{one}"')
            else:
                parts.append(f"{name}: {one}")
    return parts

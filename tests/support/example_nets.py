"""The nets in which the examples of the layer types stand."""

from layer_examples import EXAMPLES

from demitasse.io.proto import NetParameter, parse_text
from demitasse.layers.metadata import METADATA


def example_net(name: str) -> NetParameter:
    """Return the net of a layer type's example, with an Input layer for each of its inputs."""
    example = EXAMPLES[name]
    inputs = "".join(
        f'layer {{ name: "{blob}" type: "Input" top: "{blob}" input_param {{ shape {{ '
        + " ".join(f"dim: {n}" for n in shape)
        + " } } }\n"
        for blob, shape in example.inputs.items()
    )
    param = parse_text(inputs + example.text, NetParameter)
    param.state.phase = 1 if "phase: TEST" in example.text else 0
    param.force_backward = METADATA[name].gradient == "gradient"
    return param

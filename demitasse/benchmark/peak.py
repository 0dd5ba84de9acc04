"""How fast a device multiplies: what a layer's speed is a share of."""

from __future__ import annotations

from time import perf_counter

from demitasse.core.device import Device
from demitasse.io.proto import NetParameter, parse_text
from demitasse.net import Net

__all__ = ["peak"]

SIDE = 1024
"""Rows and columns of the matrices: large enough to keep cores busy, small enough to be quick."""

PASSES = 5

NET = f"""
layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: {SIDE} dim: {SIDE} }} }} }}
layer {{ name: "product" type: "InnerProduct" bottom: "x" top: "y"
        inner_product_param {{ num_output: {SIDE} bias_term: false }} }}
"""


def peak(device: Device, dtype: str) -> float:
    """Return what an inner product of large matrices reaches on a device: the best of a few.

    Returns:
        Multiplications and additions per second, in 1e9.
    """
    net = Net(parse_text(NET, NetParameter), "TEST", device=device, dtype=dtype, seed=0)
    times = []
    for _ in range(PASSES):
        net.synchronize()
        begin = perf_counter()
        net.forward()
        net.synchronize()
        times.append(perf_counter() - begin)
    return 2 * SIDE**3 / min(times) / 1e9

"""Makes the page about scaling from measured times of backward and a model of the network."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scaling_model import Network, Work, efficiency

from demitasse.pages import Chart, Curve

__all__ = ["SCALING_PAGE", "scaling_page"]

SCALING_PAGE = "reference/scaling.md"
FOUND = Path(__file__).parents[1] / "bench/results/backward_times.json"

NETWORKS = {
    "1 Gb/s Ethernet": Network(0.11e9, 50e-6),
    "10 Gb/s Ethernet": Network(1.1e9, 30e-6),
    "25 Gb/s Ethernet": Network(2.8e9, 20e-6),
    "100 Gb/s InfiniBand": Network(11e9, 3e-6),
}
"""What programs get of each, and how long a short message takes: figures of the trade, assumed."""

MACHINES = (2, 4, 8, 16, 32, 64)

HEAD = """\
# How far it scales

By computation, not by measurement: no second machine was at hand. The times of forward and of every
layer's backward are measured on one machine (`bench/backward_times.py`); the network is a model of
two numbers, how many bytes it moves in a second and how long a short message takes. What comes out
is the share of its time that each machine computes; the rest it waits for gradients.

What is assumed:

- Each machine has the net's batch as a shard of its own ([weak scaling](../parallel.md)): n
  machines make n times the batch.
- Gradients travel in a ring, {bucket} MiB at a time; each machine sends and receives
  2 (n - 1) / n of their bytes. `exact` and `fast` move the same when the number of machines divides
  the number of shards and both are powers of two.
- The slowest machine is 2 % slower than the others, and all wait for it.
- Reading data and writing snapshots cost nothing, and exchanging gradients takes no time from
  kernels, which a free core is needed for.
"""

FOOT = """\
## What is to be learned from it

- A net with few weights for its work, as GoogLeNet, needs no fast network. CaffeNet has nine tenths
  of its weights in three layers whose gradients come first and take little time: there `--overlap`
  helps most, and `--allreduce fp16` after that.
- The less a machine has to do in an iteration, the more the network counts: a larger batch for each
  machine is the first remedy, `iter_size` the second.
- Past a joined batch of some thousand images the rate has to be chosen anew: see
  [LARS and LAMB](../parallel.md).

Not in the model: several processes on one machine, which share its cores and its memory's
bandwidth; networks that others use, too; GPUs, which compute so much faster that CaffeNet's
gradients take longer than its passes on any Ethernet.
"""

NAMES = {
    "lenet": "LeNet",
    "caffenet": "CaffeNet",
    "googlenet": "GoogLeNet",
    "resnet50": "ResNet-50",
}


def scaling_page(path: Path = FOUND) -> str:
    """Return the page as markdown; it says so where nothing was measured yet."""
    head = HEAD.format(bucket=8)
    if not path.exists():
        return f"{head}\nNothing has been measured yet.\n"
    found = json.loads(path.read_text())
    works = {name: _work(net) for name, net in found["nets"].items()}
    return "\n\n".join([head, *_charts(works, found), *_table(works), FOOT])


def _work(net: Mapping[str, Any]) -> Work:
    layers = [(one["backward"], float(one["bytes"])) for one in reversed(net["layers"])]
    return Work(net["forward"], layers)


def _charts(works: Mapping[str, Work], found: Mapping[str, Any]) -> Iterator[str]:
    yield f"## Machines of {found['cores']} cores"
    yield "Full lines exchange gradients beside backward (`--overlap`), dashed ones behind it."
    for name, work in works.items():
        net = found["nets"][name]
        mib = sum(nbytes for _, nbytes in work.layers) / (1 << 20)
        yield (
            f"### {NAMES.get(name, name)}, {net['batch']} images a machine\n\n"
            f"{1e3 * work.seconds:.0f} ms of passes, {mib:.1f} MiB of gradients.\n\n"
            f'<div class="chart">{_chart(work)}</div>'
        )


def _chart(work: Work) -> str:
    """Return a chart of the share of the time that is computed, by number of machines."""
    curves = [
        Curve(
            network if overlap else "",
            [(i, efficiency(work, connects, machines, overlap=overlap))
             for i, machines in enumerate(MACHINES)],
            color,
            0 if overlap else 1,
        )
        for color, (network, connects) in enumerate(NETWORKS.items())
        for overlap in (True, False)
    ]  # fmt: skip
    places = [str(machines) for machines in MACHINES]
    return Chart(curves, "time that is computed", "machines", places=places, percent=True).svg()


def _table(works: Mapping[str, Work]) -> Iterator[str]:
    """Yield what the charts show at 16 machines, and more: faster machines, half the bytes."""
    yield "## Sixteen machines"
    yield (
        "Percent of the time that is computed: gradients behind backward, beside it, and beside it "
        "in half precision; then all of that on machines ten times as fast."
    )
    lines = [
        "| net | network | behind | beside | beside, half | ten times as fast: behind | beside | "
        "beside, half |",
        "| --- | --- |" + " --: |" * 6,
    ]
    for name, work in works.items():
        for network, connects in NETWORKS.items():
            shares = [
                efficiency(one, connects, 16, overlap=overlap)
                for machine in (work, work.faster(10))
                for one, overlap in (
                    (machine, False), (machine, True), (machine.narrowed(), True),
                )
            ]  # fmt: skip
            cells = " | ".join(f"{100 * share:.0f}" for share in shares)
            lines.append(f"| {NAMES.get(name, name)} | {network} | {cells} |")
    yield "\n".join(lines)

"""How long backward takes for each layer, and how many bytes of gradients it leaves.

    python bench/backward_times.py [lenet:64 googlenet:8 ...] [--passes 15] [--out FILE]

The page about scaling computes from these how gradients and the network between machines meet.
Medians of the passes, on the `cpu` device with one thread for each core; run it on a quiet machine.
"""

import argparse
import json
import os
import statistics
from pathlib import Path

from nets import NETS

from demitasse import Net
from demitasse.io.proto import NetParameter, parse_text
from demitasse.plan.report import Stopwatch

CASES = ("lenet:64", "caffenet:32", "googlenet:8", "resnet50:8")
OUT = Path(__file__).parent / "results/backward_times.json"


def measured(name: str, batch: int, passes: int) -> dict[str, object]:
    """Return what is known of a net: seconds forward, and of each layer backward, and its bytes."""
    message = parse_text(NETS[name](batch, True), NetParameter)
    with Net(message, "TRAIN", device="cpu", seed=1, keep_blobs="outputs") as net:
        forward, backward = [], []
        for number in range(passes + 2):
            watch = Stopwatch(net.plan, net.synchronize)
            with watch:
                net.forward_backward()
            if number >= 2:  # before, memory is made
                forward.append(sum(watch.forward))
                backward.append(watch.backward)
        own = {id(blob) for blob in net.learnable_params}
        layers = [
            {
                "layer": layer.name,
                "backward": statistics.median(one[index] for one in backward),
                "bytes": 4 * sum(blob.count for blob in layer.blobs if id(blob) in own),
            }
            for index, layer in enumerate(net.layers)
        ]
    return {
        "batch": batch,
        "forward": statistics.median(forward),
        "layers": [one for one in layers if one["bytes"] or one["backward"] > 1e-5],
    }


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=CASES, metavar="NET:BATCH")
    parser.add_argument("--passes", type=int, default=15)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    nets = {}
    for case in given.cases:
        name, batch = case.split(":")
        nets[name] = measured(name, int(batch), given.passes)
        print(case, f"{sum(one['backward'] for one in nets[name]['layers']):.4f} s backward")
    given.out.write_text(json.dumps({"cores": os.cpu_count(), "nets": nets}, indent=1) + "\n")


if __name__ == "__main__":
    main()

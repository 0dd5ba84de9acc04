"""``demitasse bench`` on the nets of ``nets``, whose prototxts are written for it.

    python bench/throughput.py lenet caffenet -- --devices cpu,cuda:0 --batches 1,16,64
    python bench/throughput.py --train cifar10_quick -- --phases test,train
    python bench/throughput.py --data raw28 lenet -- --phases train --input

What follows ``--`` are the flags of ``demitasse bench``.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from nets import NETS
from nets.images import IMAGES

from demitasse.cli import main as demitasse

RECORDS = 1024


def main() -> None:
    """Write the nets and measure them."""
    given, flags = _arguments()
    with tempfile.TemporaryDirectory(prefix="demitasse_bench_") as name:
        folder = Path(name)
        data = ""
        if given.data:
            IMAGES[given.data].write(folder / "lmdb", RECORDS)
            data = IMAGES[given.data].net(folder / "lmdb", 1)
        for net in given.nets:
            text = NETS[net](1, given.train or bool(data), given.scale)
            lines = [x for x in text.splitlines() if not data or 'type: "Input"' not in x]
            (folder / f"{net}.prototxt").write_text(data + "\n".join(lines), encoding="utf-8")
        files = [str(folder / f"{net}.prototxt") for net in given.nets]
        demitasse(["bench", *files, *flags])


def _arguments() -> tuple[argparse.Namespace, list[str]]:
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("nets", nargs="+", choices=sorted(NETS))
    parser.add_argument("--train", action="store_true", help="nets with a loss")
    parser.add_argument("--data", choices=sorted(IMAGES), help="images that such nets read")
    parser.add_argument("--scale", type=int, default=1, help="what widths are divided by")
    return parser.parse_args(words[:split]), words[split + 1 :]


if __name__ == "__main__":
    main()

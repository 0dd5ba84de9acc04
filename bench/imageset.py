"""Images per second of making a database of photos: ours, OpenCV's way, and decoding alone.

    python bench/imageset.py --threads 1,2
    python bench/imageset.py --photos folder --count 1000

Every image is decoded, resized to 256 x 256 and written to an LMDB, 1000 in a transaction. The
contenders work on the same files, in turns; the figures are medians over the rounds. Time of the
processor tells more than that of the clock where other programs run too. Without ``--photos``,
files of about 500 x 375 pixels are made of random colours.
"""

import argparse
import json
import logging
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from demitasse.io.data.databases.writing import Records, new_database
from demitasse.io.data.images.codecs import encode_image
from demitasse.io.data.images.resize import resize_image
from demitasse.io.data.imageset import ImageSet, convert_imageset
from demitasse.io.data.threads import map_ahead
from demitasse.io.proto import Datum

SIDE = 256
Work = Callable[[Path, Path, int], None]
"""What is done to the files of a list: the list, the folder to make, how many threads."""


def main() -> None:
    """Measure what the command line asks for; JSON goes to standard output."""
    given = _arguments()
    logging.getLogger("demitasse").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="demitasse_bench_") as place:
        files = sorted(given.photos.rglob("*.jpg")) if given.photos else _made(Path(place), given)
        files = (files * (given.count // max(len(files), 1) + 1))[: given.count]
        source = Path(place, "list.txt")
        source.write_text("".join(f"{file} {n % 1000}\n" for n, file in enumerate(files)))
        measured = [_measured(Path(place), source, threads, given) for threads in given.threads]
    print(json.dumps({"images": len(files), "measured": measured}, indent=1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photos", type=Path, help="folder of JPEGs")
    parser.add_argument("--count", type=int, default=10_000, help="files of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=lambda text: [int(n) for n in text.split(",")],
                        default=[1, 2])  # fmt: skip
    return parser.parse_args()


def _made(folder: Path, given: argparse.Namespace) -> list[Path]:
    """Write JPEGs of random colours, coarse ones and fine ones."""
    rng = np.random.default_rng(0)
    files = []
    for number in range(given.count):
        height, width = rng.integers([355, 480], [395, 520]).tolist()
        coarse = resize_image(rng.integers(0, 256, (3, 12, 16), np.uint8), height, width)
        fine = rng.integers(0, 40, (3, height, width), np.uint8)
        file = folder / f"{number}.jpg"
        file.write_bytes(encode_image(coarse // 4 * 3 + fine, "jpg"))
        files.append(file)
    return files


def _measured(place: Path, source: Path, threads: int, given: argparse.Namespace) -> dict[str, Any]:
    """Return images per second of each contender on so many threads."""
    walls: dict[str, list[float]] = {}
    processor: dict[str, list[float]] = {}
    for _ in range(given.rounds):
        for name, work in _contenders():
            out = place / "database"
            shutil.rmtree(out, ignore_errors=True)
            wall, cpu = time.perf_counter(), time.process_time()
            work(source, out, threads)
            walls.setdefault(name, []).append(time.perf_counter() - wall)
            processor.setdefault(name, []).append(time.process_time() - cpu)
    found = {
        name: {
            "images per second": given.count / statistics.median(walls[name]),
            "processor milliseconds": 1e3 * statistics.median(processor[name]) / given.count,
        }
        for name in walls
    }
    for name, figures in found.items():
        told = ", ".join(f"{value:.4g} {what}" for what, value in figures.items())
        print(f"{threads} threads, {name}: {told}", file=sys.stderr, flush=True)
    return {"threads": threads, **found}


def _contenders() -> Iterator[tuple[str, Work]]:
    yield "decoding alone", _decoded
    yield "demitasse", _ours
    try:
        import cv2
    except ImportError:
        return
    cv2.setNumThreads(1)
    yield "opencv", partial(_opencvs, cv2)


def _names(source: Path) -> list[str]:
    return [line.rpartition(" ")[0] for line in source.read_text().splitlines()]


def _decoded(source: Path, out: Path, threads: int) -> None:
    del out
    for _ in map_ahead(_decode, _names(source), threads):
        pass


def _decode(name: str) -> None:
    with PIL.Image.open(name) as image:
        image.load()


def _ours(source: Path, out: Path, threads: int) -> None:
    how = ImageSet(resize_height=SIDE, resize_width=SIDE)
    convert_imageset("", source, out, how, threads=threads)


def _opencvs(cv2: Any, source: Path, out: Path, threads: int) -> None:
    """Do what Caffe's tool does, with OpenCV's functions and our database."""

    def record(name: str) -> Datum:
        image = cv2.resize(cv2.imread(name, cv2.IMREAD_COLOR), (SIDE, SIDE))
        planes = np.ascontiguousarray(image.transpose(2, 0, 1))
        return Datum(channels=3, height=SIDE, width=SIDE, data=planes.tobytes())

    with (
        new_database(out, "LMDB") as database,
        closing(map_ahead(record, _names(source), threads)) as records,
    ):
        written = Records(database)
        for number, datum in enumerate(records):
            written.add(b"%08d" % number, datum)
        written.commit()


if __name__ == "__main__":
    main()

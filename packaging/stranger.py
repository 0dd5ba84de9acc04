"""Walk the path of somebody who installs Demitasse for the first time, and say what it costs.

Builds the wheel, installs it in fresh environments outside the checkout, alone and with each
extra, and runs the commands that a newcomer tries first. A command that fails ends the walk.
Prints two tables in Markdown: seconds of commands, and sizes of installations.

    python packaging/stranger.py --extras image hdf5 serve --model squeezenet.caffemodel cat.jpg
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MIB = 1 << 20
# What installs in a minute or two; CUDA's extras and torch bring gigabytes and are asked for.
LIGHT = (
    "image", "video", "hdf5", "serve", "plot", "bench", "examples", "mpi", "onnx", "tensorboard",
    "wandb", "mlflow", "all",
)  # fmt: skip
WALK = "image,examples,onnx,plot"

# A digit that training has not seen, as a photo lies on somebody's disk.
DRAW_A_DIGIT = """
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
digit = load_digits().images[-1]
Image.fromarray((digit * 15.9375).astype(np.uint8)).resize((28, 28)).save("digit.png")
"""

TRAINED = "digits/digits_iter_600.caffemodel"
TRAIN = ["--solver", "digits/solver.prototxt", "--logger", "jsonl:curve.jsonl"]
EXPORT = ["digits/deploy.prototxt", "digits.onnx", "--weights", TRAINED, "--check"]
COMMANDS = (
    ["demitasse", "--version"],
    ["demitasse", "doctor"],
    ["demitasse", "example", "digits"],
    ["python", "-c", DRAW_A_DIGIT],
    ["demitasse", "run", "digits", "digit.png"],
    ["demitasse", "export", *EXPORT],
    ["demitasse", "train", *TRAIN],
    ["demitasse", "report", "curve.jsonl", "--out", "report.html"],
)


@dataclass(frozen=True)
class Cost:
    """What a command took.

    Attributes:
        seconds: From its beginning to its end.
        busy: Seconds that processors worked on it, all cores together; other programs of the
            machine change these less. 0 on Windows, which does not tell.
    """

    seconds: float
    busy: float

    def __str__(self) -> str:
        return f"{self.seconds:.1f} | {self.busy:.1f}"


class Environment:
    """A fresh environment that sees neither the checkout nor the packages of this Python."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.folder = folder
        self.scripts = folder / ("Scripts" if os.name == "nt" else "bin")
        hidden = ("PYTHON", "DEMITASSE_", "VIRTUAL_ENV")
        self.variables = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
        self.variables["PATH"] = f"{self.scripts}{os.pathsep}{os.environ['PATH']}"
        self.empty = self._size()  # pip itself

    def run(self, command: Sequence[str], cwd: Path) -> Cost:
        """Run a command, which must end well and warn of nothing."""
        program, *arguments = command
        begin, before = time.perf_counter(), os.times()
        done = subprocess.run(
            [self.scripts / program, *arguments],
            cwd=cwd, env=self.variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
        seconds, after = time.perf_counter() - begin, os.times()
        said = done.stdout + done.stderr
        if done.returncode or "Warning:" in said:
            sys.exit(f"`{' '.join(command)}` ended with {done.returncode} and said:\n{said}")
        worked = after.children_user + after.children_system
        return Cost(seconds, worked - before.children_user - before.children_system)

    def install(self, requirement: str) -> Cost:
        """Install with pip; downloads that are not in pip's cache are in the cost."""
        return self.run(["python", "-m", "pip", "install", "--quiet", requirement], self.folder)

    def mebibytes(self) -> float:
        """What installing has added on disk."""
        return (self._size() - self.empty) / MIB

    def packages(self) -> int:
        """How many packages there are, pip left out."""
        listed = subprocess.run(
            [self.scripts / "python", "-m", "pip", "list", "--format=json"],
            env=self.variables, capture_output=True, check=True,
        )  # fmt: skip
        return sum(each["name"] not in {"pip", "setuptools"} for each in json.loads(listed.stdout))

    def _size(self) -> int:
        files = (path.lstat() for path in self.folder.rglob("*") if path.is_file())
        return sum(file.st_size for file in files)


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout."""
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    [wheel] = folder.glob("*.whl")
    return wheel


def tell_sizes(wheel: Path, extras: Sequence[str], folder: Path) -> None:
    """Print what an installation alone, and with each extra, takes."""
    print("| installed | MiB | packages | seconds | of processors |")
    print("| --- | --: | --: | --: | --: |")
    for extra in ("", *extras):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            environment = Environment(Path(place))
            cost = environment.install(f"{wheel}[{extra}]" if extra else str(wheel))
            environment.run(["demitasse", "doctor"], Path(place))
            name = f"`demitasse[{extra}]`" if extra else "`demitasse`"
            size, count = environment.mebibytes(), environment.packages()
            print(f"| {name} | {size:.0f} | {count} | {cost} |", flush=True)


def walk(wheel: Path, models: Sequence[tuple[Path, Path]], folder: Path) -> None:
    """Run a newcomer's commands in an empty folder, and print how long each takes."""
    environment, place = Environment(folder / "environment"), folder / "place"
    place.mkdir()
    print("| command | seconds | of processors |\n| --- | --: | --: |")
    tell("pip", "install", f"{wheel.name}[{WALK}]", cost=environment.install(f"{wheel}[{WALK}]"))
    for command in COMMANDS:
        cost = environment.run(command, place)
        if command[0] == "demitasse":
            tell(*command, cost=cost)
    for model, photo in models:
        cost = environment.run(["demitasse", "run", str(model), str(photo)], place)
        tell("demitasse", "run", model.name, photo.name, cost=cost)
    print("\nFiles left:", *sorted(str(path.relative_to(place)) for path in place.rglob("*")))


def tell(*command: str, cost: Cost) -> None:
    """Print a line of the table of commands."""
    print(f"| `{' '.join(command)}` | {cost} |", flush=True)


def main() -> None:
    """Build, walk and weigh."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--extras", nargs="*", default=LIGHT, help="those to weigh")
    parser.add_argument("--wheel", type=Path, help="this one, where none is to be built")
    parser.add_argument(
        "--model", nargs=2, type=Path, action="append", default=[], metavar=("MODEL", "PHOTO"),
        help="a trained model, and a photo to show to it",
    )  # fmt: skip
    chosen = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.platform()}, Python", end=" ")
    print(f"{platform.python_version()}, {os.cpu_count()} cores\n")
    with tempfile.TemporaryDirectory(prefix="stranger-") as temporary:
        folder = Path(temporary)
        wheel = chosen.wheel.resolve() if chosen.wheel else build_wheel(folder)
        walk(wheel, [(model.resolve(), photo.resolve()) for model, photo in chosen.model], folder)
        print()
        tell_sizes(wheel, chosen.extras, folder)


if __name__ == "__main__":
    main()

"""Walk the path of somebody who installs Demitasse for the first time, and say what it costs.

Builds the wheel, installs it in fresh environments outside the checkout, alone and with each
extra, and runs the commands that a newcomer tries first. A command that fails ends the walk.
Prints two tables in Markdown: sizes of installations, and seconds of commands.

    python packaging/stranger.py --extras image hdf5 serve
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
TRAIN = ["--solver", "digits/solver.prototxt", "--log_to", "jsonl:curve.jsonl"]
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

    def run(self, command: Sequence[str], cwd: Path) -> float:
        """Run a command, which must end well and warn of nothing; returns seconds."""
        program, *arguments = command
        begin = time.perf_counter()
        done = subprocess.run(
            [self.scripts / program, *arguments],
            cwd=cwd, env=self.variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
        seconds = time.perf_counter() - begin
        said = done.stdout + done.stderr
        if done.returncode or "Warning:" in said:
            sys.exit(f"`{' '.join(command)}` ended with {done.returncode} and said:\n{said}")
        return seconds

    def install(self, requirement: str) -> float:
        """Install with pip; returns seconds, downloads that are not in pip's cache included."""
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
    print("| installed | MiB | packages | seconds |\n| --- | --: | --: | --: |")
    for extra in ("", *extras):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            environment = Environment(Path(place))
            seconds = environment.install(f"{wheel}[{extra}]" if extra else str(wheel))
            environment.run(["demitasse", "doctor"], Path(place))
            name = f"`demitasse[{extra}]`" if extra else "`demitasse`"
            size, count = environment.mebibytes(), environment.packages()
            print(f"| {name} | {size:.0f} | {count} | {seconds:.0f} |", flush=True)


def walk(wheel: Path, folder: Path) -> None:
    """Run a newcomer's commands in an empty folder, and print how long each takes."""
    environment, place = Environment(folder / "environment"), folder / "place"
    place.mkdir()
    environment.install(f"{wheel}[{WALK}]")
    print("| command | seconds |\n| --- | --: |")
    for command in COMMANDS:
        seconds = environment.run(command, place)
        if command[0] == "demitasse":
            print(f"| `{' '.join(command)}` | {seconds:.1f} |", flush=True)
    print("\nFiles left:", *sorted(str(path.relative_to(place)) for path in place.rglob("*")))


def main() -> None:
    """Build, walk and weigh."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--extras", nargs="*", default=LIGHT, help="those to weigh")
    parser.add_argument("--wheel", type=Path, help="this one, where none is to be built")
    chosen = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.platform()}, Python", end=" ")
    print(f"{platform.python_version()}, {os.cpu_count()} cores\n")
    with tempfile.TemporaryDirectory(prefix="stranger-") as temporary:
        folder = Path(temporary)
        wheel = chosen.wheel.resolve() if chosen.wheel else build_wheel(folder)
        walk(wheel, folder)
        print()
        tell_sizes(wheel, chosen.extras, folder)


if __name__ == "__main__":
    main()

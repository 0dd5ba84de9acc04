"""Runs of ``demitasse train`` in processes that ``mpirun`` starts; on the loopback alone."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")

ITERATIONS = 30
SOLVER = """
{net} base_lr: 0.1 momentum: 0.9 lr_policy: "fixed" clip_gradients: 5 random_seed: 3
max_iter: 30 snapshot: 3 snapshot_prefix: "{prefix}"
"""


class Job:
    """What ``mpirun`` starts, in a network of its own where that is allowed.

    Args:
        folder: Where the net is.
        prefix: How the names of snapshots begin.
        size: How many processes.
        arguments: Further ones of ``demitasse train``.
        program: What is run with them.
        test: Fields of the solver that name the net, and say how it is tested.
        path: A folder of further modules.
        fault: What ``mpirun`` is told of processes that die.
    """

    def __init__(
        self, folder, prefix, size, *arguments, program="-m demitasse", test="", path="", fault="",
    ):  # fmt: skip
        solver = prefix.with_suffix(".prototxt")
        net = test or f'train_net: "{(folder / "net.prototxt").as_posix()}"'
        solver.write_text(SOLVER.format(net=net, prefix=prefix))
        train = [sys.executable, *program.split(), "train", "--solver", str(solver), *arguments]
        mpirun = [
            MPIRUN,
            "--oversubscribe",
            "--bind-to",
            "none",
            *fault.split(),
            "-n",
            str(size),
            *train,
        ]
        alone = [
            "unshare",
            "--map-root-user",
            "--net",
            "sh",
            "-c",
            'ip link set lo up; exec "$@"',
            "-",
        ]
        offline = (
            shutil.which("ip")
            and not subprocess.run(
                ["unshare", "--map-root-user", "--net", "true"], capture_output=True, check=False
            ).returncode
        )
        self.process = subprocess.Popen(
            [*(alone if offline else []), *mpirun],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
            env={
                **os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": f"{path}:{os.environ.get('PYTHONPATH', '')}",
            },
        )  # fmt: skip

    def end(self, seconds=120):
        """Wait for the end; return the code and what was printed."""
        try:
            printed, _ = self.process.communicate(timeout=seconds)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.returncode, printed

    def workers(self):
        """Return the numbers of its processes that train."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                trains = b"OMPI_COMM_WORLD_RANK=" in (place / "environ").read_bytes()
                if trains and os.getsid(int(place.name)) == self.process.pid:
                    found.append(int(place.name))
            except OSError:  # it has ended
                continue
        return sorted(found)


def weights_of(prefix, iteration=ITERATIONS):
    return hashlib.sha256(Path(f"{prefix}_iter_{iteration}.caffemodel").read_bytes()).hexdigest()

"""Runs writers in processes of their own, one after the other, with system calls that fail.

``faults.py`` starts it with ``faults.c`` preloaded, and asks in lines of JSON. Each answer is a
process forked from this one, which has everything imported: some hundredths of a second, not one.
"""

import atexit
import ctypes
import gc
import json
import os
import resource
import shutil
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path

import writers

MOST_SECONDS = 60

AT_FIRST = ("h5py", "lmdb", "PIL.Image", "demitasse.cli.root", "demitasse.training")
"""What nearly all runs need; what else one needs is imported after its first time."""


def main() -> None:
    for name in AT_FIRST:
        import_module(name)
    arm = ctypes.CDLL(os.environ["LD_PRELOAD"]).faults_arm
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            _work(request, arm)
        _, status = os.waitpid(child, 0)
        if "modules" in request:
            _import(request["modules"])
            gc.freeze()  # what no process looks through is not copied for it
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _work(request, arm) -> None:
    signal.alarm(MOST_SECONDS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(request["folder"])
    for file, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["stdout"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        (2, request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, file)
        os.close(opened)
    fault = request["fault"]
    watched, log = os.path.realpath("out").encode(), request["log"].encode()
    arm(watched, log, ctypes.c_long(fault["at"]), fault["kind"], fault["number"])
    if "modules" in request:
        _keep_versions(request["versions"])
    code = _end(request["command"])
    if "modules" in request:
        Path(request["modules"]).write_text(json.dumps(sorted(sys.modules)))
    os._exit(code)


def _keep_versions(folder) -> None:
    """Copy every file that takes its place to a folder, since a later one may replace it."""
    replace = Path.replace

    def replace_and_copy(path, target):
        replace(path, target)
        place = Path(folder, str(len(list(Path(folder).iterdir()))))
        place.mkdir()
        shutil.copy(target, place)

    Path.replace = replace_and_copy


def _end(command: str) -> int:
    """Run a command, do what Python does at the end of a program, and return the exit code.

    Python itself also takes all modules apart, which takes longer than the command.
    """
    code = 0
    try:
        writers.work(command)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = 120  # as Python has it
    return code


def _import(path: str) -> None:
    """Import what a run needed, so that the next ones have it."""
    for name in json.loads(Path(path).read_text()):
        if name.startswith(("demitasse", "h5py", "lmdb", "PIL", "matplotlib")):
            import_module(name)


if __name__ == "__main__":
    main()

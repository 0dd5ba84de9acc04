"""Run programs in which ``import caffe`` loads Demitasse, also in their child processes.

Python code runs in this process. Other programs replace this process (``exec``). Child processes
find ``caffe`` by PYTHONPATH, and kernels of notebooks by JUPYTER_PATH.
"""

import errno
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

from demitasse import __version__
from demitasse.compat.caffe_import_hook import install

USAGE = """\
usage: python -m demitasse.pycaffe SCRIPT.py [ARGUMENT ...]
       python -m demitasse.pycaffe -m MODULE [ARGUMENT ...]
       python -m demitasse.pycaffe -c CODE [ARGUMENT ...]
       python -m demitasse.pycaffe PROGRAM [ARGUMENT ...]

Runs a Python script, module or line of code, or any program such as jupyter, so that
`import caffe` gives Demitasse's Python interface, there and in the processes it starts.
"""

CHILDREN = Path(__file__).with_name("children")
PYTHON_SUFFIXES = {".py", ".pyw", ".pyc", ".pyz"}


def main(arguments: list[str] | None = None) -> None:
    """Run the program on the command line, and exit with its status."""
    given = sys.argv[1:] if arguments is None else arguments
    match given:
        case [] | ["-h" | "--help"]:
            stream, status = (sys.stdout, 0) if given else (sys.stderr, 2)
            stream.write(USAGE)
            raise SystemExit(status)
        case ["--version"]:
            sys.stdout.write(f"demitasse {__version__}\n")
            raise SystemExit(0)
        case ["-m" | "-c" as option]:
            sys.stderr.write(f"{option} needs an argument\n\n{USAGE}")
            raise SystemExit(2)
        case ["-m", module, *rest]:
            _prepare(rest, argv0=module, folder=str(Path.cwd()))
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", code, *rest]:
            _prepare(rest, argv0="-c", folder="")
            names = vars(sys.modules["__main__"])
            names.clear()
            names.update(__name__="__main__", __doc__=None, __package__=None, __spec__=None)
            exec(compile(code, "<string>", "exec"), names)
        case [name, *rest]:
            _run_file(name, rest)


def _run_file(name: str, rest: list[str]) -> None:
    by_path = Path(name).is_file() or (Path(name) / "__main__.py").is_file()
    file = name if by_path else shutil.which(name)
    if file is None:
        sys.stderr.write(f"demitasse.pycaffe: {name!r} is neither a file nor a program\n")
        raise SystemExit(2)
    folder, mine = Path(file).resolve(), Path(sys.executable)
    is_interpreter = Path(file).parent == mine.parent and folder == mine.resolve()
    if is_interpreter and rest and (rest[0] in {"-m", "-c"} or rest[0][:1] != "-"):
        main(rest)
    elif _is_python(Path(file), by_path=file == name):
        _prepare(rest, argv0=file, folder=str(folder if folder.is_dir() else folder.parent))
        runpy.run_path(file, run_name="__main__")
    else:
        _set_child_paths()
        sys.stdout.flush()
        sys.stderr.flush()
        if os.name == "posix":
            try:
                os.execv(file, [file, *rest])  # replaces this process
            except OSError as error:
                if error.errno != errno.ENOEXEC:
                    raise
                os.execv("/bin/sh", ["sh", file, *rest])  # a script without "#!"
        raise SystemExit(subprocess.call([file, *rest]))


def _prepare(rest: list[str], argv0: str, folder: str) -> None:
    """Set ``sys.argv``, ``sys.path`` and the environment for the program."""
    install()
    _set_child_paths()
    sys.argv[:] = [argv0, *rest]
    if not sys.flags.safe_path:  # for -m, the interpreter inserted the working directory
        del sys.path[0]
    sys.path.insert(0, str(CHILDREN))  # multiprocessing copies this list to new processes
    if not sys.flags.safe_path:
        sys.path.insert(0, folder)


def _set_child_paths() -> None:
    for variable, folder in (("PYTHONPATH", CHILDREN), ("JUPYTER_PATH", CHILDREN / "jupyter")):
        others = [p for p in os.environ.get(variable, "").split(os.pathsep) if p]
        if str(folder) not in others:
            os.environ[variable] = os.pathsep.join([str(folder), *others])


def _is_python(file: Path, by_path: bool) -> bool:
    """Return True if a file is Python code for this interpreter.

    A script named by its path counts for any Python in its first line. A program found on PATH
    counts if its first line names this interpreter's folder.
    """
    if file.is_dir() or file.suffix in PYTHON_SUFFIXES or not os.access(file, os.X_OK):
        return True
    with file.open("rb") as opened:
        first = opened.readline(512)
    if not first.startswith(b"#!"):
        return False
    if by_path:
        return b"python" in first
    interpreter = Path(os.fsdecode(first[2:].split()[0]))
    return interpreter.parent == Path(sys.executable).parent

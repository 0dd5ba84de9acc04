"""``import caffe`` gives ``demitasse.compat.pycaffe``, whichever folders stand on ``sys.path``."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from expect_error import expect_error, expect_warning

from demitasse import pycaffe
from demitasse.compat import caffe_import_hook as caffe_name

ROOT = Path(__file__).resolve().parents[3]
CHILDREN = ROOT / "demitasse" / "compat" / "pycaffe" / "children"
PACKAGE = ROOT / "compat" / "caffe"


def python(code, *path, **environment):
    """Run code in an interpreter of its own; return what it writes."""
    folders = os.pathsep.join(map(str, [*path, ROOT]))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": folders, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def installed(monkeypatch):
    """The name is taken until the end of the test."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in [name for name in sys.modules if name.split(".")[0] == "caffe"]:
        monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)
    pycaffe.install()
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "caffe":
            del sys.modules[name]


@pytest.fixture
def write_caffe(tmp_path):
    """Write another package of that name and return its folder."""

    def write(*files, code="raise ImportError('theirs')"):
        folder = tmp_path / "python" / "caffe"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(code)
        for name in files:
            (folder / name).touch()
        return folder.parent

    return write


@pytest.mark.usefixtures("installed")
def test_all_modules_are_ours_by_another_name():
    import caffe
    import caffe._caffe
    import caffe.io
    import caffe.proto.caffe_pb2 as pb
    import caffe.pycaffe
    from caffe import layers, params
    from caffe.proto import caffe_pb2

    assert caffe is pycaffe
    assert caffe._caffe.Net is caffe.pycaffe.Net is caffe.Net is pycaffe.Net
    assert pb is caffe_pb2 is pycaffe.proto.caffe_pb2
    assert (layers, params) == (pycaffe.layers, pycaffe.params)
    assert caffe.io is sys.modules["demitasse.compat.pycaffe.io"]
    assert caffe.__name__ == caffe.__spec__.name == "demitasse.compat.pycaffe"
    assert Path(caffe.__file__).name == "__init__.py"
    assert caffe.__version__ == "1.0.0"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["caffe.model_libs", "caffe.io.nothing", "caffe.proto.nothing"])
def test_what_is_not_there_is_missing_by_its_name(name):
    with pytest.raises(ModuleNotFoundError) as caught:
        __import__(name)

    assert caught.value.name == name


def test_every_public_name_is_there():
    missing = [name for name in pycaffe.__all__ if not hasattr(pycaffe, name)]

    assert missing == []
    assert set(pycaffe.__all__) <= set(dir(pycaffe))
    with expect_error(AttributeError, mentions=["'demitasse.compat.pycaffe'", "'nothing'"]):
        pycaffe.nothing  # noqa: B018


def test_the_modules_that_caffe_imports_itself_are_attributes():
    code = "import demitasse.compat.pycaffe as caffe; print(caffe.pycaffe.Net, caffe._caffe.Net)"

    assert python(code).count("demitasse.compat.pycaffe.net.Net") == 2


def test_names_are_loaded_when_they_are_used():
    code = "import demitasse.compat.pycaffe, sys; print('numpy' in sys.modules)"

    assert python(code).strip() == "False"


@pytest.mark.usefixtures("installed")
def test_a_folder_that_comes_first_later_does_not_matter(write_caffe, monkeypatch):
    monkeypatch.syspath_prepend(write_caffe())

    import caffe

    assert caffe is pycaffe


def test_another_caffe_that_was_imported_is_left_to_those_who_hold_it(write_caffe):
    code = (
        "import caffe, caffe.io; theirs = caffe\n"
        "from demitasse import pycaffe; pycaffe.install(); pycaffe.install()\n"
        "import caffe.io\n"
        "print(theirs.MARK, caffe.__name__, caffe.io.__name__)"
    )

    out = python(code, write_caffe("io.py", code="MARK = 'theirs'"))

    assert out.split() == ["theirs", "demitasse.compat.pycaffe", "demitasse.compat.pycaffe.io"]


@pytest.mark.usefixtures("installed")
def test_modules_that_only_a_fork_has_are_taken_from_its_folder(write_caffe, monkeypatch):
    folder = write_caffe("io.py")
    (folder / "caffe" / "model_libs.py").write_text(
        "from caffe import layers as L\ndef relu(net): net.relu = L.ReLU(net.data)"
    )
    (folder / "caffe" / "models").mkdir()
    (folder / "caffe" / "models" / "deep.py").write_text("import caffe.io as found")
    monkeypatch.syspath_prepend(folder)

    import caffe.models.deep
    from caffe.model_libs import relu

    net = caffe.NetSpec()
    net.data = caffe.layers.Input()
    relu(net)
    assert net.to_proto().layer[1].type == "ReLU"
    assert caffe.models.deep.found is pycaffe.io
    assert caffe.model_libs.relu is relu


@pytest.mark.usefixtures("installed")
def test_sources_that_were_never_compiled_are_told_of(write_caffe, monkeypatch):
    folder = write_caffe("_caffe.cpp")
    monkeypatch.syspath_prepend(folder)

    with expect_warning(
        RuntimeWarning, mentions=[str(Path("python", "caffe")), "_caffe.so"]
    ) as caught:
        import caffe

    assert caffe is pycaffe
    assert caught[0].filename == __file__


@pytest.mark.usefixtures("installed")
def test_a_compiled_one_is_passed_over_without_a_word(write_caffe, monkeypatch):
    suffix = caffe_name.EXTENSION_SUFFIXES[0]
    monkeypatch.syspath_prepend(write_caffe("_caffe.cpp", f"_caffe{suffix}"))

    import caffe

    assert caffe is pycaffe


@pytest.mark.usefixtures("installed")
def test_a_name_that_was_blocked_is_taken_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "caffe", None)  # so that an import raises ModuleNotFoundError
    pycaffe.install()

    import caffe

    assert caffe is pycaffe


@pytest.mark.usefixtures("installed")
def test_threads_import_the_same():
    found = []

    def look():
        pycaffe.install()
        import caffe.proto

        found.append(caffe.proto)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [pycaffe.proto] * 8


@pytest.mark.parametrize("folder", [CHILDREN, PACKAGE], ids=["children", "package"])
def test_a_folder_on_the_path_is_enough(folder):
    code = (
        "from caffe import TRAIN; import caffe, caffe._caffe; "
        "print(caffe.__name__, caffe._caffe.__name__)"
    )

    out = python(code, folder)

    assert out.split() == ["demitasse.compat.pycaffe", "demitasse.compat.pycaffe._caffe"]


def test_processes_find_ours_first_also_where_they_are_told_of_another(write_caffe):
    code = f"import sys; sys.path.insert(0, {str(write_caffe())!r}); import caffe.io; print(caffe)"

    assert "demitasse" in python(code, CHILDREN)


def test_what_an_environment_runs_at_the_start_runs_nevertheless(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mark = __name__")

    out = python("import sys; print(sys.mark, 'demitasse' in sys.modules)", CHILDREN, tmp_path)

    assert out.split() == ["sitecustomize", "False"]


def test_the_package_wins_over_folders_that_come_first_later(write_caffe):
    code = (
        f"import site, sys; site.addsitedir({str(PACKAGE)!r})\n"
        f"print('demitasse' in sys.modules); sys.path.insert(0, {str(write_caffe())!r})\n"
        "import caffe.io; print(caffe.__name__)"
    )

    assert python(code).split() == ["False", "demitasse.compat.pycaffe"]


def test_a_script_that_says_import_pil_alone_finds_its_images():
    code = (
        "import demitasse.compat.pycaffe; demitasse.compat.pycaffe.install()\n"
        "import caffe, PIL\nprint(PIL.Image.__name__)"
    )

    assert "PIL.Image" in python(code)

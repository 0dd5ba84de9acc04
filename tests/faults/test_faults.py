"""Everything that writes files, with a full disk, a broken one, or a kill between any two calls.

``nox -s faults`` tries every call of every writer; DEMITASSE_FAULTS says how many of each at most.
"""

import os
import random
import sys

import pytest
from faults import Fault, Injector, compiler
from writers import WRITERS, Writer

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or compiler() is None,
    reason="faults are injected on Linux, by a library that needs gcc; there is none",
)

MOST = int(os.environ.get("DEMITASSE_FAULTS", "1000000"))
SAMPLED = (
    "train HDF5", "log file", "HDF5Output", "MNIST to lmdb", "a database gone on with",
    "drawing as svg", "kernels",
)  # fmt: skip
EACH = 2


@pytest.fixture(scope="module")
def injector(tmp_path_factory):
    for module in ("h5py", "lmdb", "PIL.Image"):
        pytest.importorskip(module)
    injector = Injector(tmp_path_factory.mktemp("faults"))
    yield injector
    injector.close()


def drawn(injector, writer, count):
    """Return so many of a writer's faults, drawn at random, but always the same ones."""
    faults = injector.faults(writer)
    return random.Random(writer.name).sample(faults, min(count, len(faults)))


@pytest.mark.parametrize("writer", [w for w in WRITERS if w.name in SAMPLED], ids=str)
def test_some_faults_leave_the_old_file_or_the_new_one(injector, writer):
    found = {
        str(fault): injector.complaints(writer, fault) for fault in drawn(injector, writer, EACH)
    }

    assert not any(found.values()), found


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS, ids=str)
def test_every_fault_leaves_the_old_file_or_the_new_one(injector, writer):
    faults = drawn(injector, writer, MOST)
    found = {str(fault): injector.complaints(writer, fault) for fault in faults}

    kills = sum(fault.how == "kill" for fault in faults)
    lost = {fault: texts for fault, texts in found.items() if texts}
    sys.stderr.write(
        f"\n{writer}: {kills} kills, {len(faults) - kills} faults, lost: {len(lost)}\n"
    )
    assert lost == {}


def test_a_writer_that_is_not_careful_is_found_out(injector):
    """A file that is opened in its place is empty for a moment."""
    careless = Writer("careless", "call careless")

    [complaint] = injector.complaints(careless, Fault(1, "write", "kill"))

    assert "kept is neither old nor new" in complaint


def test_what_takes_a_place_is_on_the_disk_before(injector):
    """Else a power cut could leave an empty file under the name."""
    late = {}
    for writer in WRITERS:
        if writer.name in SAMPLED:
            late |= {(writer.name, path): True for path in injector.unsynced(writer)}

    assert late == {}

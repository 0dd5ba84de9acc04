"""Everything that writes files, each as a command that reads from ``in`` and writes to ``out``."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["WRITERS", "WRITING", "Writer", "make_inputs", "work"]


@dataclass(frozen=True)
class Writer:
    """A command, run in a folder with its inputs in ``in``, which writes to ``out``.

    Attributes:
        name: What it is called.
        command: Arguments of ``demitasse``, or ``call`` and the name of a function below.
        fresh: Whether ``out`` is empty at first, and does not hold what other inputs gave.
        streams: Files in ``out`` that grow while it runs, and may break off.
        resumes: Whether what is half done stays, for the next run to go on with.
        passing: Whether files it writes at first are replaced or deleted by itself later.
        codes: Exit codes it may end with.
        optional: Whether a run that cannot write is a good one all the same.
        stdout: Where standard output goes.
        stderr: Where standard error goes.
    """

    name: str
    command: str
    fresh: bool = False
    streams: tuple[str, ...] = ()
    resumes: bool = False
    passing: bool = False
    codes: tuple[int, ...] = (0, 1)
    optional: bool = False
    stdout: str = "stdout"
    stderr: str = "stderr"

    def __str__(self) -> str:
        return self.name


MODEL = "--model_def in/deploy.prototxt --pretrained_model in/w.caffemodel --device numpy"
WINDOWS = f"{MODEL} --crop_mode list --context_pad 0"
FEATURES = "in/w.caffemodel in/net.prototxt ip,scaled out/a,out/b 2"

PREDICT = "predict in/w.caffemodel in/db -o out --device numpy"

BEFORE = (0, 1, 3)
"""Where a place that the prototxt names cannot be written to from the beginning, which is 3."""

WRITERS = (
    Writer("train", "call train", fresh=True, codes=BEFORE),
    Writer("train HDF5", "call train_hdf5", fresh=True, codes=BEFORE),
    Writer("train again", "train --solver in/solver.prototxt --device numpy", codes=BEFORE),
    Writer("keep best", "call keep_best", fresh=True, passing=True, codes=BEFORE),
    Writer("snapshot from Python", "call snapshot"),
    Writer(
        "log file",
        "train --solver in/quiet.prototxt --device numpy --log_level info --log_dir out",
        fresh=True, streams=("demitasse.*.log",),
    ),
    Writer(
        "log file as Caffe",
        "call train_with_glog_dir",
        fresh=True, streams=("caffe.*",), passing=True, optional=True,
    ),
    Writer(
        "log on standard error",
        "train --solver in/quiet.prototxt --device numpy --log_level info --log_format json",
        fresh=True, streams=("log",), stderr="out/log",
    ),
    Writer(
        "numbers of a run",
        "train --solver in/quiet.prototxt --device numpy --logger jsonl:out/run.jsonl",
        fresh=True, streams=("run.jsonl",),
    ),
    Writer("HDF5Output", "call hdf5_output", fresh=True, codes=BEFORE, streams=("rows.h5",)),
    *(
        Writer(f"weights to {kind}", f"weights export in/w.caffemodel out/w.{kind}")
        for kind in ("npz", "h5", "safetensors", "caffemodel")
    ),
    Writer("mean as npy", "compute_image_mean in/db out/mean.npy"),
    Writer("mean as binaryproto", "compute_image_mean in/db out/mean.binaryproto"),
    *(
        Writer(f"{name} to {kind}", f"{command} --overwrite", resumes=name == "images")
        for kind in ("lmdb", "leveldb")
        for name, command in {
            "MNIST": f"convert mnist in/mnist out --backend {kind}",
            "MNIST files": "convert_mnist_data in/mnist/t10k-images-idx3-ubyte "
            f"in/mnist/t10k-labels-idx1-ubyte out/db --backend {kind}",
            "pairs": "convert_mnist_siamese_data in/mnist/t10k-images-idx3-ubyte "
            f"in/mnist/t10k-labels-idx1-ubyte out/db --backend {kind}",
            "CIFAR-10": f"convert_cifar_data in/cifar out {kind}",
            "images": f"convert_imageset in/ in/list.txt out/db --backend {kind}",
            "features": f"extract_features {FEATURES} {kind} --device numpy",
        }.items()
    ),
    Writer("a new database", "convert_imageset in/ in/list.txt out/db", fresh=True, resumes=True),
    Writer("a database gone on with", "convert_imageset in/ in/list.txt out/db --resume",
           fresh=True, resumes=True),
    Writer("scores", f"classify in/a.png out/scores.npy {MODEL}"),
    Writer("windows to csv", f"detect in/windows.csv out/found.csv {WINDOWS}"),
    Writer("windows to h5", f"detect in/windows.csv out/found.h5 {WINDOWS}"),
    Writer("squares", "resize_and_crop_images --input in/names.txt --input_folder in "
           "--output_folder out --output_side_length 4 --num_clients 1"),
    *(Writer(f"drawing as {kind}", f"draw_net in/net.prototxt out/net.{kind}")
      for kind in ("svg", "png", "dot")),
    Writer("graph of OpenCV's net", "call dump_graph"),
    Writer("graph by pydot's names", "call write_graph"),
    Writer("old net to text", "upgrade_net_proto_text in/v1.prototxt out/net.prototxt"),
    Writer("old net to binary", "upgrade_net_proto_binary in/v1.caffemodel out/net.caffemodel"),
    Writer("old solver", "upgrade_solver_proto_text in/v1_solver.prototxt out/solver.prototxt"),
    Writer("tables of a log", "parse_log in/train.log out"),
    Writer("seconds of a log", "extract_seconds in/train.log out/seconds"),
    Writer("chart of a log", "plot_training_log 6 out/chart.png in/train.log"),
    Writer("report of devices", "consistency in/deploy.prototxt --devices numpy,readonly "
           "--junit out/report.xml"),
    Writer("results of measuring", "call results"),
    Writer("sizes of images", "get_image_size in in/images.txt out/sizes.txt"),
    Writer("list of trusted files", "call trust"),
    Writer("card", "call card"),
    Writer("data set", "dataset in/photos out/data --size 4 --overwrite"),
    Writer("deployed net", "deploy in/net.prototxt --weights in/w.caffemodel --out out "
           "--overwrite"),
    Writer("new net", "call new"),
    Writer("drawn answers", "run in/model.toml in/a.png --draw out --device numpy"),
    Writer("part of arrays", f"{PREDICT} --force"),
    Writer("part of answers", "predict in/model.toml in/a.png -o out --format jsonl --force "
           "--device numpy"),
    Writer("parts put together", "predict --join in/parts -o out/all.npz"),
    Writer("net for ONNX", "call onnx"),
    Writer(
        "net for PyTorch",
        "export in/deploy.prototxt out/net.py --weights in/w.caffemodel --device numpy",
    ),
    Writer("net of ONNX", "call imported"),
    Writer("state_dict for PyTorch", "call state_dict"),
    Writer(
        "state_dict to weights",
        "weights import in/s.safetensors in/deploy.prototxt out/back.caffemodel --yes "
        "--save-map out/map.txt",
    ),
    Writer("executables", "caffe_shims out"),
    Writer("example", "call example", fresh=True),
    Writer("kernels", "call kernels", fresh=True, streams=("demitasse/*",), optional=True),
    *(
        Writer(command.split()[0], command, fresh=True, streams=("text",), stdout="out/text")
        for command in (
            "summary in/deploy.prototxt --json",
            "time --model in/deploy.prototxt --iterations 1 --device numpy",
            "consistency in/deploy.prototxt --devices numpy,readonly",
        )
    ),
)  # fmt: skip


WRITING = {
    "backends/kernel_cache.py": "kernels",
    "benchmark/results.py": "results of measuring",
    "cli/command.py": "log file",
    "cli/commands/caffe.py": "executables",
    "cli/commands/classify.py": ("scores", "windows to csv", "windows to h5"),
    "cli/commands/databases.py": "mean as npy",
    "cli/commands/image_files.py": ("sizes of images", "squares"),
    "cli/commands/run.py": "card",
    "cli/commands/training_log.py": ("seconds of a log", "tables of a log"),
    "cli/commands/weights.py": "state_dict to weights",
    "cli/commands/own_images.py": "new net",
    "cli/comparison.py": "report of devices",
    "cli/deployment.py": "deployed net",
    "cli/run_images.py": "drawn answers",
    "core/config/files.py": "list of trusted files",
    "compat/cvdnn/net.py": "graph of OpenCV's net",
    "io/data/dataset.py": "data set",
    "io/data/databases/_leveldb_files.py": "MNIST to leveldb",
    "io/data/databases/lmdb.py": "MNIST to lmdb",
    "io/data/databases/hdf5.py": "HDF5Output",
    "io/data/databases/writing.py": "a new database",
    "examples/digits/__init__.py": "example",
    "interop/onnx_export/files.py": "net for ONNX",
    "interop/torch_export/export.py": "net for PyTorch",
    "interop/onnx_import/importer.py": "net of ONNX",
    "pages/charts.py": ("results of measuring", "chart of a log"),
    "pages/page.py": "results of measuring",
    "inference/prediction/parts.py": "part of answers",
    "io/proto/write.py": ("old net to text", "train"),
    "compat/pycaffe/draw.py": "drawing as svg",
    "compat/pycaffe/graphs/dot.py": "graph by pydot's names",
    "training/checkpoint/snapshot.py": "train",
    "training/tracking/logger.py": "numbers of a run",
    "io/weights/hdf5.py": "weights to h5",
    "io/weights/npz.py": "weights to npz",
    "io/weights/safetensors.py": "weights to safetensors",
    "io/weights/state_dict.py": "state_dict for PyTorch",
}
"""File of the package that writes files -> writers that call it."""


def work(command: str) -> None:
    """Run a command, and end the process with its exit code."""
    from demitasse.cli import main

    first, *rest = command.split()
    if first == "call":
        globals()[f"_{rest[0]}"]()
    else:
        main([first, *rest])


# -- Functions for ``call`` ------------------------------------------------------------------------


def _train(solver: str = "in/solver.prototxt") -> None:
    """Train from the newest state there is."""
    from demitasse.cli import main

    states = sorted(Path("out").glob("s_iter_*.solverstate*"))
    resume = ["--snapshot", str(states[-1])] if states else []
    main(["train", "--solver", solver, "--device", "numpy", *resume])


def _train_hdf5() -> None:
    _train("in/solver_hdf5.prototxt")


def _train_with_glog_dir() -> None:
    os.environ["GLOG_log_dir"] = "out"  # noqa: SIM112 - glog's own spelling
    _train("in/quiet.prototxt")


def _keep_best() -> None:
    from demitasse.cli import main

    best = ["--keep_best", "loss", "--keep_last", "1"]
    main(["train", "--solver", "in/solver.prototxt", "--device", "numpy", *best])


def _snapshot() -> None:
    _as_a_script(_write_snapshot)


def _write_snapshot() -> None:
    from demitasse import Solver

    with Solver("in/quiet.prototxt", device="numpy") as solver:
        solver.step(1)
        solver.snapshot("out/s")
        solver.net.save_hdf5("out/w.h5")


def _as_a_script(function) -> None:
    """Run a function whose errors of ours and of the system end the process with 1."""
    from demitasse.errors import DemitasseError

    try:
        function()
    except (DemitasseError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(1) from None


def _hdf5_output() -> None:
    from demitasse.cli import main

    files = ["--model", "in/rows.prototxt", "--weights", "in/w.caffemodel"]
    main(["test", *files, "--iterations", "3", "--device", "numpy"])


def _dump_graph() -> None:
    from demitasse import cvdnn

    net = cvdnn.readNetFromCaffe("in/deploy.prototxt")
    _as_a_script(lambda: net.dumpToFile("out/net.dot"))


def _write_graph() -> None:
    from demitasse.compat.pycaffe.draw import get_pydot_graph
    from demitasse.io.proto import read_net_params

    graph = get_pydot_graph(read_net_params("in/net.prototxt"), "LR")
    _as_a_script(lambda: graph.write_svg("out/net.svg"))


def _careless() -> None:
    """Open a file in its place: what was there is gone before there is anything new."""
    Path("out/kept").write_bytes(Path("in/train.log").read_bytes())


def _example() -> None:
    from demitasse.examples import digits
    from demitasse.examples.data import Split

    few = np.full((3, 1, 2, 2), 7, np.uint8), np.arange(3)
    digits.read_digits = lambda **_options: Split(few, few)  # scikit-learn takes seconds
    _as_a_script(lambda: digits.prepare(Path("out/digits")))


def _results() -> None:
    """Write what was measured, as ``bench`` does, without its time and its machine."""
    from datetime import datetime
    from types import SimpleNamespace

    from pytest_benchmark import plugin, utils

    from demitasse.benchmark import results as files
    from demitasse.benchmark.case import Case
    from demitasse.benchmark.measure import Result

    plugin.pytest_benchmark_generate_machine_info = utils.get_commit_info = dict
    files.datetime = SimpleNamespace(now=lambda zone: datetime(2026, 1, 1, tzinfo=zone))
    milliseconds = float(Path("in/list.txt").read_text().split()[1])
    case = Case(Path("in/deploy.prototxt"), "numpy", 1, "TEST")
    results = [Result(case, [milliseconds / 1000] * 3)]

    def write() -> None:
        files.write_results(Path("out/results.json"), results)
        files.rates_chart(results).save(Path("out/results.svg"))
        files.write_page(results, Path("out/results.html"), None, {})

    _as_a_script(write)


def _new() -> None:
    """Write a net for as many classes as the inputs have."""
    from demitasse.cli import main

    classes = int(Path("in/list.txt").read_text().split()[1]) + 1
    main(["new", "--classes", str(classes), "--net", "lenet", "--out", "out", "--overwrite"])


def _card() -> None:
    """Write a card of a net that lies elsewhere, which no card may."""
    from demitasse.cli import main
    from demitasse.inference.cards import card_file

    card_file._file = lambda path, folder: path.name
    said = ["--task", "classify", "--channels", "bgr", "--mean", "none"]
    name = ["--name", Path("in/list.txt").read_text().split()[1]]
    place = ["--out", "out/model.toml", "--overwrite"]
    main(["card", "in/deploy.prototxt", "in/w.caffemodel", *place, *said, *name])


def _onnx() -> None:
    """Write what stands for a model of the library, which need not be there."""
    from types import SimpleNamespace

    from demitasse.interop.onnx_export.files import write_model

    message = _model_message()()
    message.graph.doc_string = Path("in/w.caffemodel").read_bytes().hex()
    model = SimpleNamespace(message=message, constants={}, nbytes=0)
    _as_a_script(lambda: write_model(model, Path("out/net.onnx")))


def _model_message() -> type:
    """Return a message that has what is written of ONNX's: a graph, with initializers."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="model.proto", package="writers")
    graph, model = file.message_type.add(name="Graph"), file.message_type.add(name="Model")
    graph.field.add(name="initializer", number=5, type="TYPE_BYTES", label="LABEL_REPEATED")
    graph.field.add(name="doc_string", number=10, type="TYPE_STRING", label="LABEL_OPTIONAL")
    model.field.add(
        name="graph", number=7, type="TYPE_MESSAGE", label="LABEL_OPTIONAL",
        type_name=".writers.Graph",
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("writers.Model"))


def _imported() -> None:
    """Write what stands for an imported model; the library that reads them need not be there."""
    from demitasse.interop.onnx_import.importer import _write
    from demitasse.interop.onnx_import.net_builder import NetBuilder
    from demitasse.io.proto.read import read_net_params
    from demitasse.io.weights.formats import load_weights

    builder = NetBuilder("small", ())
    builder.message = read_net_params("in/deploy.prototxt")
    builder.weights = load_weights("in/w.caffemodel")
    _as_a_script(lambda: _write(builder, Path("out/net.prototxt"), Path("out/net.caffemodel")))


def _state_dict() -> None:
    """Write what stands for a file of PyTorch, which need not be there."""
    from types import SimpleNamespace

    from demitasse.io.weights.formats import load_weights
    from demitasse.io.weights.state_dict import write_state_dict

    sys.modules["torch"] = SimpleNamespace(
        from_numpy=lambda array: array,
        save=lambda tensors, file: [file.write(one.tobytes()) for one in tensors.values()],
    )
    arrays = {"ip.weight": load_weights("in/w.caffemodel")["ip"][0]}
    _as_a_script(lambda: write_state_dict(Path("out/net.pt"), arrays, None))


def _trust() -> None:
    from demitasse.cli import main

    os.environ["XDG_CONFIG_HOME"] = str(Path("out").resolve())
    main(["trust", "in/demitasse.toml"])


def _kernels() -> None:
    """Keep code, as nets do that compile kernels, and read it again."""
    from demitasse.backends.kernel_cache import read_code, write_code
    from demitasse.core.log import start_logging

    start_logging("warning")
    os.environ["XDG_CACHE_HOME"] = str(Path("out").resolve())
    for name in ("one", "other"):
        if read_code(name) is None:
            write_code(name, b"code")
    found = {read_code(name) for name in ("one", "other")}
    sys.stdout.write("well\n" if found <= {b"code", None} else f"{found}\n")


# -- What they read --------------------------------------------------------------------------------

DATA = """
layer { name: "data" type: "Data" top: "data" top: "label"
  data_param { source: "in/db" backend: LMDB batch_size: 3 } transform_param { scale: 0.01 } }
"""
IP = """
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: SIZE weight_filler { type: "xavier" } } }
"""
NET = f"""
name: "small"
{DATA}
layer {{ name: "scaled" type: "Power" bottom: "data" top: "scaled" power_param {{ scale: 2 }} }}
{IP}
layer {{ name: "quiet" type: "Silence" bottom: "scaled" }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
"""
DEPLOY = f"""
name: "small"
layer {{ name: "data" type: "Input" top: "data"
  input_param {{ shape {{ dim: 1 dim: 3 dim: 2 dim: 2 }} }} }}
{IP}
"""
ROWS = """
layer { name: "rows" type: "HDF5Output" bottom: "data" bottom: "label"
  hdf5_output_param { file_name: "out/rows.h5" } }
"""
SOLVER = """
net: "in/net.prototxt" base_lr: 0.01 momentum: 0.9 lr_policy: "fixed" max_iter: 4 snapshot: 2
test_iter: 1 test_interval: 2 display: 1 random_seed: SEED snapshot_prefix: "out/s"
"""
V1 = """
name: "old" layers { name: "ip" type: INNER_PRODUCT bottom: "data" top: "ip"
  inner_product_param { num_output: SIZE } }
"""
CARD = """
format = 1
[model]
name = "small"
net = "deploy.prototxt"
weights = "w.caffemodel"
task = "classify"
[preprocess]
channels = "bgr"
"""
LOG = """\
I1120 12:00:00.000000  4242 solver.cpp:239] Solving small
I1120 12:00:01.000000  4242 solver.cpp:239] Iteration 0, loss = 1.SEED
I1120 12:00:01.000000  4242 solver.cpp:258] Train net output #0: loss = 1.SEED (* 1 = 1.SEED loss)
I1120 12:00:01.000000  4242 sgd_solver.cpp:106] Iteration 0, lr = 0.01
I1120 12:00:02.000000  4242 solver.cpp:347] Iteration 0, Testing net (#0)
I1120 12:00:02.000000  4242 solver.cpp:414] Test net output #0: accuracy = 0.SEED
I1120 12:00:03.000000  4242 solver.cpp:239] Iteration 1, loss = 0.SEED
I1120 12:00:03.000000  4242 sgd_solver.cpp:106] Iteration 1, lr = 0.01
"""


def make_inputs(folder: Path, seed: int) -> None:
    """Make what the commands read; another seed gives other values of the same shapes.

    Args:
        folder: The folder of ``in``.
        seed: 1 to 9.
    """
    from PIL import Image

    from demitasse import Net
    from demitasse.io.data.databases.writing import write_database
    from demitasse.io.weights.safetensors import write_safetensors

    rng = np.random.default_rng(seed)
    place = folder / "in"
    place.mkdir(parents=True)
    here = Path.cwd()
    os.chdir(folder)
    try:
        images = rng.integers(0, 256, (7, 3, 2, 2), np.uint8)
        write_database("in/db", zip(images, (np.arange(7) % 3).tolist(), strict=True))
        texts = {
            "net.prototxt": NET,
            "deploy.prototxt": DEPLOY,
            "rows.prototxt": DATA + ROWS,
            "v1.prototxt": V1,
            "v1_solver.prototxt": SOLVER + "solver_type: SGD",
            "solver.prototxt": SOLVER,
            "solver_hdf5.prototxt": SOLVER + "snapshot_format: HDF5",
            "quiet.prototxt": SOLVER.replace("snapshot: 2", "snapshot_after_train: false"),
            "train.log": LOG,
            "model.toml": CARD,
            "list.txt": "".join(f"{name}.png {seed}\n" for name in "abc"),
            "names.txt": "".join(f"{name}.png\n" for name in "abc"),
            "images.txt": "".join(f"{name}.png {name}.xml\n" for name in "abc"),
            "demitasse.toml": f"seed = {seed}\n",
            "windows.csv": f"filename,ymin,xmin,ymax,xmax\n{place}/d.png,5,5,30,30\n",
        }
        for name, text in texts.items():
            (place / name).write_text(
                text.replace("SEED", str(seed)).replace("SIZE", f"{seed + 2}")
            )
        for name in "abc":
            Image.fromarray(rng.integers(0, 256, (6, 6, 3), np.uint8)).save(place / f"{name}.png")
        Image.fromarray(rng.integers(0, 256, (50, 50, 3), np.uint8)).save(place / "d.png")
        for kind in ("one", "two"):
            (place / "photos" / kind).mkdir(parents=True)
            for name in "abc":
                shutil.copy(place / f"{name}.png", place / "photos" / kind)
        with Net("in/deploy.prototxt", "TEST", device="numpy", seed=seed) as net:
            net.save("in/w.caffemodel")
            weight, bias = (blob.data for blob in net.params["ip"])
            state = {"fc.weight": weight.reshape(seed + 2, -1), "fc.bias": bias}
            write_safetensors(place / "s.safetensors", state)
        _make_old_weights(place, seed)
        _make_published(place, rng)
        _make_parts(place, rng)
    finally:
        os.chdir(here)


def _make_old_weights(place: Path, seed: int) -> None:
    from google.protobuf import text_format

    from demitasse.io.proto import NetParameter

    text = V1.replace("SIZE", "1").replace(
        "inner_product_param", f"blobs {{ num: 1 channels: 1 height: 1 width: 1 data: {seed} }} "
        "inner_product_param"
    )  # fmt: skip
    (place / "v1.caffemodel").write_bytes(
        text_format.Parse(text, NetParameter()).SerializeToString()
    )


def _make_parts(place: Path, rng: np.random.Generator) -> None:
    """Write a prediction in two parts."""
    (place / "parts").mkdir()
    for index in range(2):
        arrays = {"prob": rng.random((3, 2)), "items": np.array(["a", "b", "c"]), "made_from": "x"}
        np.savez(place / "parts" / f"part-{index:05}-of-00002.npz", **arrays)


def _make_published(place: Path, rng: np.random.Generator) -> None:
    """Write a few images in the files of MNIST and CIFAR-10."""
    mnist, cifar = place / "mnist", place / "cifar"
    mnist.mkdir(), cifar.mkdir()
    for split in ("train", "t10k"):
        images = rng.integers(0, 256, (5, 3, 3), np.uint8)
        head = np.array([0x803, *images.shape], ">u4").tobytes()
        (mnist / f"{split}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        head = np.array([0x801, 5], ">u4").tobytes()
        (mnist / f"{split}-labels-idx1-ubyte").write_bytes(head + bytes(range(5)))
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        content = rng.integers(0, 10, (2, 3073), np.uint8)
        (cifar / f"{name}.bin").write_bytes(content.tobytes())

"""Products of 16 bits beside float32, and beside OpenVINO's and PyTorch's, on this processor.

    python bench/compare_dtypes.py resnet50:1 mobilenet:8        # bfloat16, one thread
    python bench/compare_dtypes.py --dtype float16 caffenet:1 vgg16:1
    python bench/compare_dtypes.py --threads 2 --results FILE

Engines run in turns in one process: Demitasse in float32 and with the ``dtype``, OpenVINO in
float32 and in the ``dtype``, PyTorch's autocast on the CPU with channels last. In bfloat16,
OpenVINO has the ``INFERENCE_PRECISION_HINT`` bf16; in float16, a model with weights of 16 bits.
Each is timed by the process's time for one thread, else by the clock. Printed are medians in
milliseconds, the median ratio of neighbouring turns to ours in the ``dtype``, above 1 where ours is
faster, and errors relative to the largest probability. Engines that are not installed are left out.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from peers.cases import Case
from peers.prepare import prepare

from demitasse import Net
from demitasse.core.config import settings
from demitasse.io.proto import NetParameter, read_text

CASES = [
    "resnet50:1", "resnet50:8", "googlenet:1", "googlenet:8", "mobilenet:1", "mobilenet:8",
    "mobilenet_v2:1", "squeezenet:1", "resnet18:1", "caffenet:1", "vgg16:1", "vgg16:8",
]  # fmt: skip
SHORT = {"bfloat16": "bf16", "float16": "f16"}
Run = Callable[[], np.ndarray]


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=CASES, help="NET:BATCH")
    parser.add_argument("--dtype", choices=SHORT, default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--results", type=Path, help="file of JSON lines that figures are added to")
    given = parser.parse_args()
    settings.set("threads", given.threads)
    for text in given.cases:
        case = Case.parse(f"{text}:forward")
        with tempfile.TemporaryDirectory() as folder:
            prepare(case, Path(folder))
            lines = compare(case, Path(folder), given)
        for line in lines:
            print("{case:16} {engine:16} {ms:9.2f} ms {ratio:6.2f} {error:8.1e}".format(**line))
        if given.results:
            with given.results.open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)


def compare(case: Case, folder: Path, given: argparse.Namespace) -> list[dict[str, object]]:
    """Return a line for each engine."""
    runs: dict[str, Run] = {}
    threads, measured = given.threads, f"demitasse {SHORT[given.dtype]}"
    for make in (ours, openvino, torch):
        try:
            runs |= make(folder, threads, given.dtype)
        except (ImportError, ValueError) as error:  # not installed, or a layer that it lacks
            print(f"left out: {error}")
    clock = time.process_time if threads == 1 else time.perf_counter
    right = np.load(folder / "right.npz")["prob"]
    errors, seconds = {}, {}
    for name, run in runs.items():
        run()
        got = np.asarray(run(), np.float64)[: len(right)].reshape(right.shape)
        errors[name] = float(np.abs(got - right).max() / np.abs(right).max())
        seconds[name] = []
    begin = time.perf_counter()
    runs[measured]()
    count = max(1, int(0.02 / (time.perf_counter() - begin)))
    for _ in range(given.rounds):
        for name, run in runs.items():
            run()  # after another engine's threads and caches
            begin = clock()
            for _ in range(count):
                run()
            seconds[name].append((clock() - begin) / count)
    return [
        {
            "case": f"{case.net}:{case.batch}", "threads": threads, "engine": name,
            "ms": round(1e3 * statistics.median(times), 3),
            "ratio": round(
                statistics.median(a / b for a, b in zip(times, seconds[measured], strict=True)), 3
            ),
            "error": float(f"{errors[name]:.2g}"),
        }
        for name, times in seconds.items()
    ]  # fmt: skip


def ours(folder: Path, threads: int, dtype: str) -> dict[str, Run]:
    """Return passes of our nets."""
    del threads
    batch = np.load(folder / "batch.npz")["data"]

    def net(dtype: str) -> Run:
        made = Net(
            read_text(folder / "net.prototxt", NetParameter), "TEST",
            weights=folder / "weights.caffemodel", device="cpu", dtype=dtype, keep_blobs="outputs",
        )  # fmt: skip
        made.set_input("data", batch)

        def run() -> np.ndarray:
            made.blobs["data"].mutable_cpu_data()
            made.forward()
            return made.blobs["prob"].cpu_data()

        return run

    return {"demitasse f32": net("float32"), f"demitasse {SHORT[dtype]}": net(dtype)}


def openvino(folder: Path, threads: int, dtype: str) -> dict[str, Run]:
    """Return passes of OpenVINO."""
    import openvino

    batch = np.load(folder / "batch.npz")["data"]

    def request(precision: str, file: Path = folder / "net.onnx") -> Run:
        how = {
            "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision,
            "INFERENCE_NUM_THREADS": threads,
        }  # fmt: skip
        made = openvino.Core().compile_model(file, "CPU", how)
        one = made.create_infer_request()
        return lambda: one.infer([batch], share_inputs=True, share_outputs=True)[0]

    plain = {"openvino f32": request("f32")}
    if dtype == "bfloat16":
        return plain | {"openvino bf16": request("bf16")}
    half = folder / "half.xml"
    openvino.save_model(openvino.convert_model(folder / "net.onnx"), half, compress_to_fp16=True)
    return plain | {"openvino f16": request("f32", half)}


def torch(folder: Path, threads: int, dtype: str) -> dict[str, Run]:
    """Return passes of PyTorch."""
    import torch
    from peers.twin import twin

    torch.set_num_threads(threads)
    with np.load(folder / "weights.npz") as weights:
        net = twin(read_text(folder / "net.prototxt", NetParameter), weights, train=False)
    net = net.to(memory_format=torch.channels_last)
    data = torch.from_numpy(np.load(folder / "batch.npz")["data"])
    data = data.to(memory_format=torch.channels_last)

    def run() -> np.ndarray:
        with torch.inference_mode(), torch.autocast("cpu", dtype=getattr(torch, dtype)):
            return net(data).float().numpy()

    return {f"torch {SHORT[dtype]}": run}


if __name__ == "__main__":
    main()

"""The recorded cases in ``tests/goldens``: each runs through the engine and judges the result.

A test asks for the cases and reads as a sentence::

    @pytest.mark.parametrize("case", golden_layers(), ids=str)
    def test_layer_matches_caffe(case, backend):
        net = case.net(device=backend)

        case.run(net)

        case.check(net, rtol=1e-4, atol=1e-5)

Differences are taken relative to the scale of the recorded array, not element by element:
cancellation leaves noise in small elements that says nothing about the code.
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

GOLDENS = Path(__file__).resolve().parent.parent / "goldens"
SMALLEST_SCALE = 1e-3

Arrays = dict[str, np.ndarray]


def error(got: Any, want: Any) -> float:
    """Largest absolute difference, in units of the largest recorded value (at least 1e-3).

    Infinite when the shapes differ, or where ``got`` is not finite though ``want`` is.
    """
    a, b = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if a.shape != b.shape:
        return np.inf
    odd = ~np.isfinite(b)
    if not np.array_equal(a[odd], b[odd], equal_nan=True) or not np.isfinite(a[~odd]).all():
        return np.inf
    scale = max(SMALLEST_SCALE, np.max(np.abs(b[~odd]), initial=0.0))
    return float(np.max(np.abs(a[~odd] - b[~odd]), initial=0.0) / scale)


def expect_close(got: Mapping[str, Any], want: Mapping[str, Any], rtol: float, atol: float) -> None:
    """Fail with one line for every array of ``want`` that ``got`` lacks or differs from.

    An array passes when its shape is right and its largest difference is within
    ``atol + rtol * scale``, where scale is the largest recorded value.
    """
    wrong = [line for key in want for line in _judge(key, got.get(key), want[key], rtol, atol)]
    assert not wrong, "differs from the recording:\n  " + "\n  ".join(wrong)


def _judge(key: str, got: Any, want: Any, rtol: float, atol: float) -> Iterator[str]:
    if got is None:
        yield f"{key}: not there"
        return
    if np.shape(got) != np.shape(want):
        yield f"{key}: shape {np.shape(got)}, recorded {np.shape(want)}"
        return
    scale = float(np.max(np.abs(want), initial=0.0))
    worst = error(got, want) * max(SMALLEST_SCALE, scale)
    allowed = atol + rtol * scale
    if not worst <= allowed:
        yield f"{key}: off by {worst:.3g}, allowed {allowed:.3g} (largest value {scale:.3g})"


def _part(arrays: Mapping[str, np.ndarray], head: str) -> Arrays:
    """The arrays under ``head/``, by the rest of their key."""
    return {k[len(head) + 1 :]: v for k, v in arrays.items() if k.startswith(head + "/")}


def _set_params(net: Any, arrays: Arrays) -> None:
    for key, value in arrays.items():
        layer, index = key.rsplit("/", 1)
        net.params[layer][int(index)].data[...] = value


def _get_params(net: Any, side: str) -> Arrays:
    return {
        f"{layer}/{i}": np.array(getattr(blob, side))
        for layer, blobs in net.params.items()
        for i, blob in enumerate(blobs)
    }


@dataclass(frozen=True, eq=False)
class LayerCase:
    """A small net, its inputs, and everything Caffe computed from them."""

    path: Path
    phase: str
    forwards: int
    has_loss: bool
    backward: bool

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        return self.path.stem

    @cached_property
    def arrays(self) -> Arrays:
        """The recorded arrays, read when first asked for."""
        with np.load(self.path.with_suffix(".npz")) as file:
            return {key: file[key] for key in file.files}

    @cached_property
    def types(self) -> list[str]:
        """The layer types in the prototxt, in order, inputs included."""
        return re.findall(r'\btype:\s*"(\w+)"', self.path.read_text())

    @cached_property
    def _results(self) -> WeakKeyDictionary[Any, Arrays]:
        return WeakKeyDictionary()

    def net(self, **options: Any) -> Any:
        """The net, made with ``options`` (``device=``, ``dtype=``, ``optimize=``, ...)."""
        from demitasse import Net

        return Net(self.path, self.phase, **options)

    def run(self, net: Any) -> Arrays:
        """Set the parameters, run every forward, then backward; return all results by key."""
        got: Arrays = {}
        _set_params(net, _part(self.arrays, "param"))
        for i in range(self.forwards):
            for name, value in self._inputs(i).items():
                net.blobs[name].data[...] = value
            if self.backward:
                net.clear_param_diffs()
            net.forward()
            got |= {f"out{i}/{name}": np.array(net.blobs[name].data) for name in self._outputs(i)}
        got |= {f"out/{name}": np.array(net.blobs[name].data) for name in self._outputs()}
        got |= {f"param_after/{k}": v for k, v in _get_params(net, "data").items()}
        if self.backward:
            got |= self._run_backward(net)
        self._results[net] = got
        return got

    def _run_backward(self, net: Any) -> Arrays:
        for name, value in _part(self.arrays, "dout").items():
            net.blobs[name].diff[...] = value
        net.backward()
        got = {f"din/{name}": np.array(net.blobs[name].diff) for name in _part(self.arrays, "din")}
        return got | {f"dparam/{k}": v for k, v in _get_params(net, "diff").items()}

    def _inputs(self, i: int) -> Arrays:
        return _part(self.arrays, "in" if self.forwards == 1 else f"in{i}")

    def _outputs(self, i: int | None = None) -> Arrays:
        return _part(self.arrays, "out" if i is None else f"out{i}")

    @property
    def expected(self) -> Arrays:
        """What a run must reproduce, by key."""
        given = re.compile(r"(in\d*|param|dout)/")
        return {key: value for key, value in self.arrays.items() if not given.match(key)}

    def check(self, net: Any, rtol: float = 1e-4, atol: float = 1e-5) -> None:
        """Compare the last run of ``net`` with the recording (see :func:`expect_close`)."""
        expect_close(self._results[net], self.expected, rtol, atol)


@dataclass(frozen=True, eq=False)
class RuleCase:
    """One net under one phase, level and stages, and what Caffe built from it or how it refused."""

    path: Path
    phase: str
    level: int
    stages: tuple[str, ...]
    want: dict[str, Any]

    def __str__(self) -> str:
        return "-".join([self.name, self.phase, str(self.level), *self.stages])

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def refused(self) -> bool:
        return "error" in self.want

    def net(self, **options: Any) -> Any:
        from demitasse import Net

        return Net(self.path, self.phase, level=self.level, stages=self.stages, **options)

    def check(self, net: Any) -> None:
        """Compare layers, wiring, shapes, parameters, loss weights, backward needs and memory."""
        got = json.loads(json.dumps(describe(net)))
        wrong = {
            k: (got[k], self.want[k]) for k in got if k in self.want and got[k] != self.want[k]
        }
        assert not wrong, "\n".join(f"{k}: {g}\nrecorded: {w}" for k, (g, w) in wrong.items())


def describe(net: Any) -> dict[str, Any]:
    """What a net was built to, in the words of the recordings."""
    names = net.blob_names
    layers = [
        {
            "name": name,
            "type": layer.type,
            "bottoms": [names[b] for b in net.structure.bottom_ids(i)],
            "tops": [names[t] for t in net.structure.top_ids(i)],
        }
        for i, (name, layer) in enumerate(zip(net.layer_names, net.layers, strict=True))
    ]
    needs = zip(net.layer_names, net.structure.needs.layers, strict=True)
    return {
        "layers": layers,
        "blobs": {
            name: blob.shape for name, blob in zip(names, net.structure.blob_list, strict=True)
        },
        "params": {k: [p.shape for p in blobs] for k, blobs in net.params.items()},
        "inputs": list(net.inputs),
        "outputs": list(net.outputs),
        "loss_weights": dict(zip(names, map(float, net.structure.blob_loss_weights), strict=True)),
        "needs_backward": [name for name, need in needs if need],
        "memory_bytes": net.structure.memory_used,
    }


@dataclass(frozen=True, eq=False)
class SolverCase:
    """Twelve iterations on one fixed batch, from recorded weights or from Caffe's snapshot."""

    path: Path
    restored: bool

    def __str__(self) -> str:
        return f"{self.name}-{'restored' if self.restored else 'fresh'}"

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(".solver.prototxt")

    @property
    def first(self) -> int:
        """The iteration that the first step brings: 1, or 7 after the snapshot at 6."""
        return 7 if self.restored else 1

    @cached_property
    def arrays(self) -> Arrays:
        with np.load(self.path.with_name(self.name + ".npz")) as file:
            return {key: file[key] for key in file.files}

    def solver(self, folder: Path, **options: Any) -> Any:
        """The solver, made in ``folder``, where its snapshots land, and brought to the start."""
        from demitasse import Solver

        for file in self.path.parent.glob(self.name + "[._]*"):
            shutil.copy(file, folder)
        solver = Solver(folder / self.path.name, **options)
        if self.restored:
            [state] = folder.glob(self.name + "_iter_6.solverstate*")
            solver.restore(state)
        else:
            _set_params(solver.net, _part(self.arrays, "init"))
        for name, value in _part(self.arrays, "in").items():
            solver.net.blobs[name].data[...] = value
        return solver

    def run(self, solver: Any) -> Arrays:
        """Step to iteration 12; return each step's weights and loss, by recorded key."""
        got: Arrays = {}
        for k in range(self.first, 13):
            solver.step(1)
            got |= {f"step{k}/{key}": v for key, v in _get_params(solver.net, "data").items()}
            got[f"loss{k}"] = np.array(solver.net.blobs["loss"].data)
        return got

    @property
    def expected(self) -> Arrays:
        steps = range(self.first, 13)
        want = {f"loss{k}": np.asarray(self.arrays["loss"][k - 1]) for k in steps}
        for k in steps:
            want |= {f"step{k}/{key}": v for key, v in _part(self.arrays, f"step{k}").items()}
        return want

    def check(self, got: Arrays, rtol: float = 5e-4, atol: float = 5e-7) -> None:
        """Compare the result of :meth:`run` with the recording (see :func:`expect_close`)."""
        expect_close(got, self.expected, rtol, atol)


@cache
def golden_layers(*types: str) -> list[LayerCase]:
    """The single-layer and small-net cases; given layer types, those that hold one of them."""
    cases = [_layer_case(path) for path in sorted((GOLDENS / "layers").glob("*.prototxt"))]
    return [case for case in cases if not types or set(types) & set(case.types)]


def _layer_case(path: Path) -> LayerCase:
    with path.open() as file:
        head = dict(re.findall(r"(\w+): (\w+)", file.readline()))
    return LayerCase(
        path,
        head["phase"],
        int(head["forwards"]),
        head["loss"] == "true",
        head["backward"] == "true",
    )


@cache
def golden_rules() -> list[RuleCase]:
    """The net-construction cases, one for each recorded state."""
    return [
        RuleCase(
            path.with_suffix(".prototxt"),
            want["state"]["phase"],
            want["state"]["level"],
            tuple(want["state"]["stages"]),
            want,
        )
        for path in sorted((GOLDENS / "rules").glob("*.json"))
        for want in json.loads(path.read_text())
    ]


@cache
def golden_solvers() -> list[SolverCase]:
    """The solver cases, each from the start and from Caffe's snapshot."""
    paths = sorted((GOLDENS / "solvers").glob("*.solver.prototxt"))
    return [SolverCase(path, restored) for path in paths for restored in (False, True)]

"""Runs of a generated net: the steps of a case, by fast code on ``cpu`` or by portable code.

Portable code may run from inputs, parameters and tops that are changed as rounding changes them.
"""

import threading
import traceback
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from net_case import Case, Input, Layer, NetSpec

import demitasse as dm

__all__ = ["Arrays", "Log", "Runs"]

TAIL = 6e-8
"""Half a unit in the last place of float32, of a term that others cancel."""

SWITCHES = ("jit", "winograd")
"""Settings that a case may change."""

WAYS = ("write", "assign", "flat", "held", "copy", "load", "share")
"""How a parameter is changed."""

PASSES = (
    "backward", "beside", "ended", "failing", "forward", "hook", "parts", "predict", "thread",
    "train",
)  # fmt: skip
"""Actions that run a pass of the net."""

Arrays = dict[str, np.ndarray]


class _EndError(Exception):
    """A callback ends a pass."""


@dataclass
class Log:
    """Arrays that passes left, by step; and the error that ended them."""

    steps: list[tuple[str, Arrays]] = field(default_factory=list)
    error: Exception | None = None
    where: str = ""
    rates: dict[str, float] = field(default_factory=dict)
    rms: float = 0.0


class Runs:
    """The runs of a case, whose nets are files of a folder."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder = case, folder
        self.path = folder / "net.prototxt"
        self.path.write_text(case.net.prototxt())
        self.other_path = folder / "other.prototxt"
        if case.other is not None:
            self.other_path.write_text(case.other.prototxt())

    def portable(self, dtype: str, change: float = 0, seed: int = 0, like: Log | None = None):
        """Run portable code, perhaps changed, at the rates of another run if one is given."""
        options = {"device": "numpy", "optimize": False, "dtype": dtype}
        return self._run(options, like, _Change(change, seed), fast=False)

    def fast(self, like: Log) -> Log:
        """Run fast code at the rates of another run."""
        return self._run({"device": "cpu"}, like, _Change(0, 0), fast=True)

    def _run(self, options, like, change, *, fast) -> Log:
        log = Log(where="construction")
        try:
            run = _Run(self, options, change, log, fast=fast)
            if like is not None:
                log.rates, log.rms = like.rates, like.rms
            for number, step in enumerate(self.case.scenario.steps):
                log.where = f"step {number} {step[0]} {step[1]}"
                run.do(*step)
            log.where = "end"
            run.finish()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            log.error = error
            if not isinstance(error, dm.DemitasseError):
                error.add_note("".join(traceback.format_exception(error)[-3:])[-3000:])
            error.__traceback__ = None
        return log


@dataclass(frozen=True)
class _Change:
    """Random relative changes of arrays."""

    size: float
    seed: int

    def __call__(self, array: np.ndarray, name: str, *, common: bool = False) -> np.ndarray:
        """Return an array with each element changed, and with ``common`` each channel as a whole.

        The latter is what rounding of long sums does, of a batch's statistics for example, where
        small terms are added to a large sum.
        """
        if not self.size:
            return array
        rng = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        change = rng.standard_normal(array.shape)
        if common and array.ndim > 1:
            change += 3 * rng.standard_normal((1, array.shape[1], *(1,) * (array.ndim - 2)))
        return array * (1 + self.size * change)

    def cut_tail(self, array: np.ndarray, name: str) -> np.ndarray:
        """Return what is added to GELU where 1 + erf is rounded to float32, before small values."""
        rng = np.random.default_rng([self.seed, 2, zlib.crc32(name.encode())])
        return TAIL * np.abs(array).max(initial=0) * rng.standard_normal(array.shape)


class _Run:
    """One net, and its companion, on which the steps of a case are done."""

    def __init__(self, runs: Runs, options, change: _Change, log: Log, *, fast: bool) -> None:
        self.case, self.change, self.log, self.fast = runs.case, change, log, fast
        scenario = self.case.scenario
        if fast:
            first = [value for action, value in scenario.steps if action == "threads"][:1]
            dm.settings.set("threads", int(first[0]) if first else 1)
            for name in SWITCHES:
                dm.settings.set(name, None)
        else:
            dm.settings.set("threads", 1)  # threads of BLAS that wait for others cost most of it
        self.options = options
        keep = list(scenario.keep) if isinstance(scenario.keep, tuple) else scenario.keep
        self.keep = keep if fast else None
        self.net = dm.Net(runs.path, phase=scenario.phase, keep_blobs=self.keep, seed=1, **options)
        self.solver = None
        self.folder = runs.folder
        self.memo: dict[tuple, Arrays] = {}
        self.last: Arrays | None = None
        self.shape_number = -1
        self._set_parameters(self.net)
        self._disturb(self.net)
        self.changed, self.donors = 0, []  # edits of parameters, and nets that share them
        self.arrays, self.state = self._parameter_arrays(), None
        self.other = self.tester = None
        if self.case.other is not None:
            self.other = dm.Net(
                runs.other_path,
                phase="TEST",
                keep_blobs="outputs" if fast else None,
                seed=1,
                **options,
            )
            self._set_parameters(self.other)
            self._disturb(self.other)
        made = {top for layer in self.case.net.layers for top in layer.tops} & set(self.net.blobs)
        self.outputs = [name for name in self.net.outputs if name in made]
        if scenario.keep == "outputs":
            self.compared = self.outputs
        elif scenario.keep is None:
            self.compared = sorted(made)
        else:
            self.compared = sorted(made & {*scenario.keep, *self.outputs})

    # -- values ----------------------------------------------------------------------------------

    def _set_parameters(self, net) -> None:
        types = {layer.name: layer.type for layer in self._spec_of(net).layers}
        for name, blobs in net.params.items():
            for index, blob in enumerate(blobs):
                label = f"{name}[{index}]"
                rng = np.random.default_rng([self.case.seed, zlib.crc32(label.encode())])
                value = _parameter(rng, types.get(name, ""), index, blob.shape)
                value = value.astype(np.float32)
                if types.get(name) == "BatchNorm" and index == 2:
                    blob.data[...] = value
                else:
                    blob.data[...] = self.change(value.astype(np.float64), label)

    def _disturb(self, net) -> None:
        """Let the output of each layer be changed, as rounding inside the layer does."""
        if not self.change.size:
            return
        layers = {layer.name: layer for layer in self._spec_of(net).layers}
        names = list(net.layer_names)

        def disturb(number: int) -> None:
            layer = layers.get(names[number])
            for top in layer.tops if layer else ():
                blob, label = net.blobs[top], f"{net is self.other} {top}"
                changed = self.change(blob.data, label, common=True)
                if layer.type == "GELU":
                    changed = changed + self.change.cut_tail(blob.data, label)
                blob.data[...] = changed

        net.after_forward.append(disturb)

    def _spec_of(self, net) -> NetSpec:
        return self.case.net if net is self.net else self.case.other

    def _values(self, one: Input, number: int, shape) -> np.ndarray:
        label = f"{one.name} {number}"
        rng = np.random.default_rng([self.case.seed, zlib.crc32(label.encode())])
        value = _input_values(rng, one.kind, shape).astype(np.float32)
        if one.kind == "noise":
            return self.change(value.astype(np.float64), label)
        return value

    def _feed(self, number: int, net=None) -> dict[str, np.ndarray]:
        net = net or self.net
        values = {}
        for one in self._spec_of(net).inputs:
            shape = one.shape
            if net is self.net and self.shape_number >= 0:
                shape = self.case.scenario.shapes[self.shape_number][one.name]
            values[one.name] = self._values(one, number, shape)
        return values

    def _give(self, number: int, net=None) -> None:
        net = net or self.net
        for name, value in self._feed(number, net).items():
            if self.case.scenario.feed == "data":
                if net.blobs[name].shape != value.shape:
                    net.blobs[name].reshape(*value.shape)
                net.blobs[name].data[...] = value
            else:
                net.set_input(name, value.astype(net.dtype))

    # -- steps -----------------------------------------------------------------------------------

    def do(self, action: str, value) -> None:
        """Do a step, and log what it leaves."""
        match action:
            case "threads":
                if self.fast:
                    dm.settings.set("threads", int(value))
            case "device":
                if self.fast:
                    self.net.to(value)
                    self.arrays = self._parameter_arrays()
            case "shape":
                self.shape_number = int(value)
            case "jit" | "winograd":
                if self.fast:
                    dm.settings.set(action, bool(value))
            case "clone":
                if self.fast and self.solver is None:
                    self.net = self.net.clone()
                    self.arrays = self._parameter_arrays()
            case "edit":
                self._edit(int(value))
            case "snapshot" if self.solver:
                files = self.folder / f"{'fast' if self.fast else 'portable'}{value}"
                self.state = self.solver.state_dict() if value % 2 else self.solver.snapshot(files)
            case "restore" if self.state is not None:
                if value % 2:
                    self.solver.load_state_dict(self.state)
                else:
                    self.solver.restore(self.state[1])
            case "other":
                if self.other is not None:
                    self._log_memo(("other", value), lambda: self._run_other(value))
            case "tested":
                self._log(self._tested(value))
            case "predict":
                self._log_memo((action, value), lambda: self._predict(value))
            case "train" if self.case.scenario.solver:
                self._log(self._solve(value))
                self.last = self.log.steps[-1][1]
            case _:
                stateless = self.case.scenario.phase == "TEST" and action != "train"
                act: Callable[[], Arrays] = lambda: getattr(self, f"_{action}")(value)  # noqa: E731
                if stateless:
                    self._log_memo((action, value), act)
                else:
                    self._log(act())
                self.last = None if self.fast else self.log.steps[-1][1]

    def _log(self, arrays: Arrays) -> None:
        self.log.steps.append((self.log.where, arrays))

    def _log_memo(self, key, act) -> None:
        """Log results; those of portable code are computed once, since they do not change."""
        key = (*key, self.shape_number, self.changed)
        if self.fast:
            self._log(act())
        else:
            if key not in self.memo:
                self.memo[key] = act()
            self._log(self.memo[key])

    def _forward(self, number: int) -> Arrays:
        self._give(number)
        loss = self.net.forward()
        return {"loss": np.float64(loss)} | self._results()

    def _results(self) -> Arrays:
        whole = self.case.scenario.read_all or not self.fast
        names = self.compared if whole else self.outputs
        return {name: np.array(self.net.blobs[name].data) for name in names}

    def _backward(self, number: int) -> Arrays:
        self.net.clear_param_diffs()
        results = self._forward(number)
        self._set_output_gradients(number)
        self.net.backward()
        return results | self._gradients()

    def _set_output_gradients(self, number: int) -> None:
        for name in self.outputs:
            blob = self.net.blobs[name]
            if self._is_loss(name):
                continue
            rng = np.random.default_rng([self.case.seed, number, zlib.crc32(name.encode())])
            blob.diff[...] = rng.standard_normal(blob.shape).astype(np.float32)

    def _is_loss(self, name: str) -> bool:
        return any(name in one.tops and one.type.endswith("Loss") for one in self.case.net.layers)

    def _gradients(self) -> Arrays:
        found = {}
        force = self.case.net.force_backward
        for one in self.case.net.inputs:
            if one.kind == "noise" and force:
                found[f"d {one.name}"] = np.array(self.net.blobs[one.name].diff)
        keeps = self.case.scenario.keep is None
        if force and keeps and (self.case.scenario.read_all or not self.fast):
            for name in self.compared:
                if not self._is_loss(name) and name not in self.outputs:
                    found[f"d {name}"] = np.array(self.net.blobs[name].diff)
        for name, blobs in self.net.params.items():
            for index, blob in enumerate(blobs):
                found[f"d {name}[{index}]"] = np.array(blob.diff)
        return found

    def _rate(self) -> float:
        """Return the rate at which a step of portable code changes parameters by a hundredth.

        All other runs take the same one.
        """
        rates = self.log.rates
        if self.log.where not in rates:
            blobs = self.net.learnable_params
            gradient = np.sqrt(sum(float((blob.diff**2).sum()) for blob in blobs))
            weights = np.sqrt(sum(float((blob.data**2).sum()) for blob in blobs))
            # gradients of nothing but rounding are not to be scaled up
            rates[self.log.where] = min(10.0, 0.01 * weights / gradient) if gradient > 0 else 0.0
        return rates[self.log.where]

    def _train(self, number: int) -> Arrays:
        if all(self._is_loss(name) for name in self.outputs):
            self._give(number)
            self.net.clear_param_diffs()
            for _ in range(self.case.scenario.batches):
                loss = self.net.forward_backward()
            results = {"loss": np.float64(loss)} | self._results()
            if self.case.scenario.read_all or not self.fast:
                results |= self._gradients()
        else:
            results = self._backward(number)
        rate = self._rate()
        for blob in self.net.learnable_params:
            blob.scale_diff(rate)
        self.net.update()
        return results

    def _hook(self, number: int) -> Arrays:
        """Run forward while a callback reads the top of a layer."""
        read = self.net.blobs[self._layer(number).tops[0]] if self.keep is None else None

        def callback(_: int) -> None:
            if read is not None:
                read.data.sum()

        self.net.after_forward.append(callback)
        results = self._forward(number)
        self.net.after_forward.remove(callback)
        return results

    def _thread(self, number: int) -> Arrays:
        """Run forward in another thread."""
        results: list[Arrays] = []
        thread = threading.Thread(target=lambda: results.append(self._forward(number)))
        thread.start()
        thread.join()
        return results[0]

    def _beside(self, number: int) -> Arrays:
        """Run forward while another thread runs the companion net."""
        if self.other is None:
            return self._forward(number)
        found: list[Arrays] = []

        def run() -> None:
            found.extend(self._run_other(number + i) for i in range(4))

        thread = threading.Thread(target=run)
        thread.start()
        results = self._forward(number)
        thread.join()
        others = {f"{name} {i}": one for i, each in enumerate(found) for name, one in each.items()}
        return results | others

    def _ended(self, number: int) -> Arrays:
        """Run forward to a layer, and then all of it."""
        self._give(number)
        self.net.forward(end=self._layer(number).name)
        return self._forward(number)

    def _parts(self, number: int) -> Arrays:
        """Run forward to a layer, write to its top, and run the rest."""
        if self.case.scenario.keep is not None:
            return self._ended(number)
        self._give(number)
        layer = self._layer(number)
        self.net.forward(end=layer.name)
        if number % 2:
            self.net.blobs[layer.tops[0]].data[...] *= 0.75
        following = self.net.layer_number(layer.name) + 1
        if following < len(self.net.layers):
            self.net.forward(start=following)
        return self._results()

    def _failing(self, number: int) -> Arrays:
        """Run a pass that a callback ends, and then a whole one."""
        at = self.net.layer_number(self._layer(number).name)

        def callback(index: int) -> None:
            if index == at:
                raise _EndError

        self._give(number)
        self.net.after_forward.append(callback)
        with suppress(_EndError):
            self.net.forward()
        self.net.after_forward.remove(callback)
        return self._forward(number)

    def _layer(self, number: int) -> Layer:
        """Return a layer by a number, of those that the net has in its phase."""
        layers = [one for one in self.case.net.layers if self.net.has_layer(one.name)]
        return layers[(number * 7919 + self.case.seed) % len(layers)]

    def _tested(self, number: int) -> Arrays:
        """Run the net for TEST, which shares the parameters, as a solver's test nets do."""
        net = self.solver.net if self.solver else self.net
        if self.tester is None:
            path = self.folder / "net.prototxt"
            self.tester = dm.Net(path, phase="TEST", seed=1, **self.options)
            self._disturb(self.tester)
        self.tester.share_trained_layers_with(net)  # whose memories an edit replaces
        for name, value in self._feed(number).items():
            self.tester.set_input(name, value.astype(net.dtype))
        self.tester.forward()
        outputs = [name for name in self.tester.outputs if name in self.outputs]
        return {f"tested {name}": np.array(self.tester.blobs[name].data) for name in outputs}

    # -- parameters ------------------------------------------------------------------------------

    def _parameter_arrays(self) -> list[np.ndarray]:
        """Return the data of all parameters, as a user may hold them, if an edit writes there."""
        numbers = [value for action, value in self.case.scenario.steps if action == "edit"]
        if not self.fast or "held" not in {WAYS[number % len(WAYS)] for number in numbers}:
            return []  # live views have code of their own
        return [blob.data for blobs in self.net.params.values() for blob in blobs]

    def _edit(self, number: int) -> None:
        """Change a parameter, in one of the ways in which users do."""
        self.changed += 1
        kinds = {layer.name: layer.type for layer in self.case.net.layers}
        places = [
            (name, index)
            for name, blobs in self.net.params.items()
            for index in range(len(blobs))
            if (kinds.get(name), index) != ("BatchNorm", 2)
        ]
        if not places:
            return
        rng = np.random.default_rng([self.case.seed, 77, number])
        name, index = places[rng.integers(len(places))]
        way, blob = WAYS[number % len(WAYS)], self.net.params[name][index]
        value = blob.data * rng.uniform(0.5, 1.5, blob.shape).astype(np.float32)
        donor = None
        if self.fast and way in ("copy", "load", "share"):
            donor = self.net.clone()
            donor.params[name][index].data[...] = value
        match way if self.fast else "write":
            case "write":
                blob.data[...] = value
            case "assign":
                blob.data = value
            case "flat":
                blob.data.reshape(-1)[: blob.count] = value.reshape(-1)
            case "held":
                blobs = [id(one) for blobs in self.net.params.values() for one in blobs]
                self.arrays[blobs.index(id(blob))][...] = value
            case "copy":
                blob.copy_from(donor.params[name][index])
            case "load":
                donor.save(self.folder / "edited.caffemodel")
                self.net.load(self.folder / "edited.caffemodel")
            case "share":
                self.donors.append(donor)
                self.net.share_trained_layers_with(donor)
                self.arrays = self._parameter_arrays()

    def _predict(self, number: int) -> Arrays:
        found = self.net.predict(self._feed(number))
        return {f"predicted {name}": np.array(found[name]) for name in self.outputs}

    def _run_other(self, number: int) -> Arrays:
        self._give(number, self.other)
        self.other.forward()
        made = {top for layer in self.case.other.layers for top in layer.tops}
        names = [name for name in self.other.outputs if name in made]
        return {f"other {name}": np.array(self.other.blobs[name].data) for name in names}

    # -- solvers ---------------------------------------------------------------------------------

    def _solve(self, number: int) -> Arrays:
        if self.solver is None:
            self._begin_solver()
        self._give(number)
        self.solver.step(1)
        return self._results()

    def _begin_solver(self) -> None:
        scenario = self.case.scenario
        if not self.log.rates:  # portable code, which runs first
            self._backward(0)
            self._rate()
            blobs = self.net.learnable_params
            squares = sum(float((blob.diff**2).sum()) for blob in blobs)
            self.log.rms = np.sqrt(squares / max(1, sum(blob.count for blob in blobs)))
        adaptive = scenario.solver in ("Adam", "RMSProp", "AdaGrad")
        [rate] = [1e-2] if adaptive else self.log.rates.values()
        lines = [
            f"iter_size: {scenario.batches}",
            f'net: "{(self.folder / "net.prototxt").as_posix()}" type: "{scenario.solver}"',
            f"base_lr: {rate:.6g}",
            'lr_policy: "fixed" max_iter: 1000 snapshot_after_train: false random_seed: 1',
        ]
        if adaptive:  # so that gradients of nothing but rounding move no weight
            lines.append(f"delta: {max(self.log.rms, 1e-8):.6g}")
        else:
            lines.append("momentum: 0.5 weight_decay: 0.0005")
        path = self.folder / "solver.prototxt"
        path.write_text("\n".join(lines))
        self.solver = dm.Solver(path, keep_blobs=self.keep, seed=1, **self.options)
        self.net = self.solver.net
        self.arrays = self._parameter_arrays()
        self._set_parameters(self.net)
        self._disturb(self.net)

    def finish(self) -> None:
        """Log what was not read yet: kept blobs and, after training, parameters."""
        ran = [action for action, _ in self.case.scenario.steps]
        last = [action for action in ran if action in (*PASSES, "clone")]
        if last and last[-1] not in ("predict", "clone"):
            if self.fast:
                self.last = {name: np.array(self.net.blobs[name].data) for name in self.compared}
            self._log({name: self.last[name] for name in self.compared})
        if "train" in ran:
            self._log(
                {
                    f"p {name}[{index}]": np.array(blob.data)
                    for name, blobs in self.net.params.items()
                    for index, blob in enumerate(blobs)
                }
            )
        for net in (self.solver or self.net, self.other, self.tester, *self.donors):
            if net is not None:
                net.close()
        for name in SWITCHES if self.fast else ():
            dm.settings.set(name, None)


def _parameter(rng: np.random.Generator, type_: str, index: int, shape) -> np.ndarray:
    """Return values such as trained nets have."""
    match type_, index:
        case "BatchNorm", 0:
            return 0.2 * rng.standard_normal(shape)
        case "BatchNorm", 1:
            return rng.uniform(0.5, 1.5, shape)
        case "BatchNorm", 2:
            return np.ones(shape)
        case "Scale", 0:
            return rng.uniform(0.5, 1.5, shape)
        case "PReLU", _:
            return rng.uniform(0.05, 0.4, shape)
        case "Normalize", _:
            return rng.uniform(1, 3, shape)
    if len(shape) < 2:
        return 0.1 * rng.standard_normal(shape)
    if type_ == "Deconvolution":
        return rng.standard_normal(shape) * np.sqrt(2 / (shape[0] * max(1, np.prod(shape[2:]) / 4)))
    if type_ == "Embed":
        return rng.standard_normal(shape)
    gain = 1 if type_ in ("LSTM", "RNN") else 2
    return rng.standard_normal(shape) * np.sqrt(gain / np.prod(shape[1:]))


def _input_values(rng: np.random.Generator, kind: str, shape) -> np.ndarray:
    name, *numbers = kind.split(":")
    match name:
        case "labels" | "index":
            return rng.integers(0, int(numbers[0]), shape)
        case "cont":
            cont = (rng.random(shape) < 0.8).astype(np.float32)
            cont[0] = 0  # no state is carried from pass to pass
            return cont
        case "rois":
            n, h, w = map(int, numbers)
            corners = rng.random((shape[0], 4)) * [w, h, w, h]
            low, high = np.sort(corners.reshape(-1, 2, 2), 1).swapaxes(0, 1)
            first = rng.integers(0, n, (shape[0], 1))
            return np.hstack([first, np.floor(low), np.floor(high)])
    return rng.standard_normal(shape)

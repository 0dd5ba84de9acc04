"""Oracle of generated nets: the results of fast code on ``cpu`` against portable code in float64.

Portable code runs the same passes from the same parameters and inputs, and each array of results
is compared relative to its largest value. Rounding is 1e-7 of that; nets amplify it, and gradients
jump where an activation or the maximum of a window switches. So what differs by more than ``RTOL``
is compared with evidence of what rounding does to this net: portable code in float32, and in
float64 with inputs, parameters and the top of each layer changed a little more than rounding
changes them. A result is wrong where it is further off than ``FACTOR`` times the evidence, in its
largest error or in the root of its mean square; evidence with larger changes counts for gradients
alone, and for what was trained with them, since outputs are continuous functions.
"""

import gc
import tempfile
import threading
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import guarded_arrays
import numpy as np
from net_case import Case, Input, Layer, NetSpec

import demitasse as dm

__all__ = ["Failure", "Verdict", "check", "summary"]

RTOL, GRADIENT_RTOL = 3e-5, 1e-4
"""Differences that need no explanation, over the largest value of an array."""

FACTOR = 8
"""How much further off than the evidence a result may be."""

FACTOR_OF_SUMS = 24
"""The same for gradients, beside portable code in float32, which adds up in pairs: sums that cancel
are as far off as their order makes them."""

SMALL_CHANGE, LARGE_CHANGE = 3e-6, 3e-5
"""Relative changes of inputs and parameters; the larger one shows which gradients may jump."""

MOST_SEEDS = 12
"""Changes of either size that are tried at most: how far a single element is off varies much where
a few nearly equal values are normalised."""

TAIL = 6e-8
"""Half a unit in the last place of float32, of a term that others cancel."""

LEAST = 1e-6
"""Scale of arrays whose values are all smaller."""

LEAST_LOSS = 2e-3
"""Scale of smaller losses: the probability that a loss takes the logarithm of rounds by 6e-8, which
is ``RTOL`` of this scale."""

LOG_LOSSES = {"InfogainLoss", "MultinomialLogisticLoss", "SoftmaxWithLoss"}
"""Layers whose losses are logarithms of probabilities."""

LEAST_SHARE = 1e-2
"""Scale of gradients that are smaller, as a share of the pass's largest: sums may cancel."""

CANCELLED = 1e3
"""What that scale is multiplied with where the sum is 0 but for float64's rounding, as the gradient
of a bias before a normalisation is: what float32 leaves of it follows from no other number."""

HUGE = 1e12
"""Values beyond which nothing is compared, nor in later steps; their products overflow."""

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


@dataclass(frozen=True)
class Failure:
    """A fault: its kind ("differs", "error TypeError", "died SIGSEGV", ...) and what was seen."""

    kind: str
    text: str


@dataclass
class Verdict:
    """Outcome of a case.

    Attributes:
        failure: The fault, or None.
        refused: Message with which portable code refuses the net; "" where it does not.
        arrays: How many arrays were compared.
        explained: How many were off by more than ``RTOL``, as the evidence is.
        unclear: How many of those the evidence says nothing about: it is off by 10 % itself.
    """

    failure: Failure | None = None
    refused: str = ""
    arrays: int = 0
    explained: int = 0
    unclear: int = 0


@dataclass
class _Log:
    """Arrays that passes left, by step; and the error that ended them."""

    steps: list[tuple[str, Arrays]] = field(default_factory=list)
    error: Exception | None = None
    where: str = ""
    rates: dict[str, float] = field(default_factory=dict)
    rms: float = 0.0


def check(case: Case) -> Verdict:
    """Run a case and compare it."""
    with tempfile.TemporaryDirectory() as folder:
        runs = _Runs(case, Path(folder))
        want = runs.portable("float64")
        if want.error is not None and want.where == "construction":
            return Verdict(refused=str(want.error))
        with guarded_arrays.guarded():
            got = runs.fast(want)
        gc.collect()
        return _judge(runs, want, got)


# -- runs ----------------------------------------------------------------------------------------


class _Runs:
    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder = case, folder
        self.path = folder / "net.prototxt"
        self.path.write_text(case.net.prototxt())
        self.other_path = folder / "other.prototxt"
        if case.other is not None:
            self.other_path.write_text(case.other.prototxt())

    def portable(self, dtype: str, change: float = 0, seed: int = 0, like: _Log | None = None):
        options = {"device": "numpy", "optimize": False, "dtype": dtype}
        return self._run(options, like, _Change(change, seed), fast=False)

    def fast(self, like: _Log) -> _Log:
        return self._run({"device": "cpu"}, like, _Change(0, 0), fast=True)

    def _run(self, options, like, change, *, fast) -> _Log:
        log = _Log(where="construction")
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

    def __init__(self, runs: _Runs, options, change: _Change, log: _Log, *, fast: bool) -> None:
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


# -- comparison ----------------------------------------------------------------------------------


def _judge(runs: _Runs, want: _Log, got: _Log) -> Verdict:
    verdict = Verdict()
    if got.error is not None and (want.error is None or got.where != want.where):
        notes = "\n".join(getattr(got.error, "__notes__", []))
        kind = f"error {type(got.error).__name__}"
        verdict.failure = Failure(kind, f"{got.where}: {got.error}\n{notes}")
        return verdict
    if want.error is not None and got.error is None:
        kind = f"refused by portable code alone {type(want.error).__name__}"
        verdict.failure = Failure(kind, f"{want.where}: {want.error}")
        return verdict
    doubtful, overflows = [], False
    scales = [_least_of(expected) for _, expected in want.steps]
    for number, ((where, expected), (_, found)) in enumerate(
        zip(want.steps, got.steps, strict=False)
    ):
        overflows = overflows or any(map(_overflows, expected.values()))
        for name, array in found.items():
            verdict.arrays += 1
            wanted = expected[name]
            if array.shape != wanted.shape:
                text = f"{where}: {name} has shape {array.shape}, expected {wanted.shape}"
                verdict.failure = Failure("shape", text)
                return verdict
            is_gradient = name.startswith("d ")
            scale = scales[number] if is_gradient else _least_value(runs.case, name)
            if is_gradient and _cancels(wanted, scale):
                scale *= CANCELLED
            if overflows:
                verdict.unclear += 1
            elif not _largest(array, wanted, scale) <= (GRADIENT_RTOL if is_gradient else RTOL):
                doubtful.append((number, where, name))
    if doubtful:
        _weigh(runs, want, got, doubtful, verdict)
    return verdict


def _overflows(array: np.ndarray) -> bool:
    return not np.isfinite(array).all() or np.abs(array).max(initial=0) > HUGE


def _weigh(runs, want, got, doubtful, verdict) -> None:
    """Compare what is off with what rounding does."""
    evidence = _Evidence(runs, want)
    trained = any(action == "train" for action, _ in runs.case.scenario.steps)
    lines = []
    for number, where, name in doubtful:
        wanted, array = want.steps[number][1][name], got.steps[number][1][name]
        is_gradient = name.startswith("d ")
        least = _least_of(want.steps[number][1]) if is_gradient else _least_value(runs.case, name)
        least *= CANCELLED if is_gradient and _cancels(wanted, least) else 1
        error = _largest(array, wanted, least), _root_mean_square(array, wanted, least)
        place = number, name, wanted, least
        for allowed in evidence.allowances(place, may_jump=trained or is_gradient):
            is_off = _exceeds(error, allowed)
            if not is_off or not np.isfinite(error[0]):
                break
        if is_off:
            lines.append(
                f"{where}: {name} {array.shape} is off by {error[0]:.2g} of "
                f"{_scale(wanted, least):.2g}, rms {error[1]:.2g}; "
                f"rounding explains {allowed[0]:.2g}, rms {allowed[1]:.2g}; "
                f"{_places(array, wanted, least)}"
            )
        else:
            verdict.explained += 1
            verdict.unclear += allowed[0] > 0.1 * FACTOR
    if lines:
        more = f"\n... and {len(lines) - 12} more" if len(lines) > 12 else ""
        verdict.failure = Failure("differs", "\n".join(lines[:12]) + more)


class _Evidence:
    """Passes that show what rounding does to a net, made when they are needed."""

    def __init__(self, runs: _Runs, want: _Log) -> None:
        self._runs, self._want = runs, want
        self._made: dict[tuple[float, int], _Log] = {}

    def allowances(self, place, *, may_jump: bool) -> Iterator[tuple[float, float]]:
        """Yield the error that evidence explains, of more and more passes.

        Args:
            place: Step, name, expected array and least scale.
            may_jump: Whether large changes count.
        """
        factor = FACTOR_OF_SUMS if may_jump else FACTOR
        allowed = _allowed([self._run(0, 0)], *place, factor)
        for seeds in (range(1, 3), range(3, MOST_SEEDS)):
            for change in (SMALL_CHANGE, LARGE_CHANGE)[: 1 + may_jump]:
                logs = [self._run(change, seed) for seed in seeds]
                allowed = _either(allowed, _allowed(logs, *place, FACTOR))
                yield allowed

    def _run(self, change: float, seed: int) -> _Log:
        key = change, seed
        if key not in self._made:
            dtype = "float64" if change else "float32"
            self._made[key] = self._runs.portable(dtype, change, seed, self._want)
        return self._made[key]


def _exceeds(error: tuple[float, float], allowed: tuple[float, float]) -> bool:
    return np.isfinite(allowed[0]) and not (error[0] <= allowed[0] and error[1] <= allowed[1])


def _either(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return max(one[0], other[0]), max(one[1], other[1])


def _allowed(
    logs: list[_Log], number: int, name: str, wanted: np.ndarray, least: float, factor: float
) -> tuple[float, float]:
    """Return the largest error, and the root of the mean square, that evidence explains."""
    largest = mean = 0.0
    for log in logs:
        found = log.steps[number][1].get(name) if len(log.steps) > number else None
        if found is None or not np.isfinite(found).all():
            return np.inf, np.inf  # rounding, or an overflow, ends this run or makes NaN of it
        largest = max(largest, _largest(found, wanted, least))
        mean = max(mean, _root_mean_square(found, wanted, least))
    rtol = GRADIENT_RTOL if name.startswith("d ") else RTOL
    return rtol + factor * largest, rtol + factor * mean


def _least_value(case: Case, name: str) -> float:
    """Return the least scale of an array that is no gradient."""
    nets = [net for net in (case.net, case.other) if net is not None]
    losses = {
        top for net in nets for one in net.layers if one.type in LOG_LOSSES for top in one.tops
    }
    is_loss = name == "loss" and bool(losses)
    return LEAST_LOSS if is_loss or name.rsplit(maxsplit=1)[-1] in losses else LEAST


def _least_of(arrays: Arrays) -> float:
    """Return the least scale of gradients of a pass."""
    gradients = (np.abs(a).max(initial=0) for name, a in arrays.items() if name.startswith("d "))
    return max(LEAST, LEAST_SHARE * float(max(gradients, default=0)))


def _cancels(wanted: np.ndarray, least: float) -> bool:
    return np.abs(wanted).max(initial=0) < 1e-8 * least


def _scale(wanted: np.ndarray, least: float) -> float:
    return max(least, float(np.abs(wanted).max(initial=0)))


def _largest(array: np.ndarray, wanted: np.ndarray, least: float) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.abs(array - wanted).max(initial=0)) / _scale(wanted, least)


def _root_mean_square(array: np.ndarray, wanted: np.ndarray, least: float) -> float:
    if not array.size:
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.sqrt(((array - wanted) ** 2).mean())) / _scale(wanted, least)


def _places(array: np.ndarray, wanted: np.ndarray, least: float) -> str:
    """Say how many elements are off, and where the first ones are."""
    with np.errstate(invalid="ignore", over="ignore"):
        off = ~(np.abs(array - wanted) <= 10 * RTOL * _scale(wanted, least))
    places = list(_first(np.argwhere(off), 3))
    return f"{int(off.sum())} of {off.size} elements, at {places}"


def _first(found: np.ndarray, count: int) -> Iterator[tuple[int, ...]]:
    for place in found[:count]:
        yield tuple(int(i) for i in place)


def summary(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain values."""
    failure = verdict.failure
    return {
        "failure": None if failure is None else [failure.kind, failure.text],
        "refused": verdict.refused,
        "arrays": verdict.arrays,
        "explained": int(verdict.explained),
        "unclear": int(verdict.unclear),
    }

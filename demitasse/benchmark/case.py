"""Cases of a benchmark: a net, a device, a batch size and a phase."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demitasse.errors import DataError, DemitasseError, ErrorCode, NetError
from demitasse.io.proto import NetParameter, SolverParameter, read_net
from demitasse.net import Net
from demitasse.training import Solver

WEIGHTS = (".caffemodel", ".caffemodel.h5")


@dataclass(frozen=True)
class Case:
    """A case of a benchmark.

    Attributes:
        net: The net's prototxt.
        device: Name of the device.
        batch: Batch size.
        phase: "TEST" measures forward passes, "TRAIN" whole steps: forward, backward and update.
    """

    net: Path
    device: str
    batch: int
    phase: str

    @property
    def name(self) -> str:
        """Name of the case in tables and files."""
        return f"{self.net.stem}[{self.device}-{self.batch}-{self.phase.lower()}]"


def with_batch(path: Path, phase: str, batch: int) -> NetParameter:
    """Return a net with inputs of a batch size, from host memory.

    Inputs of the same shapes replace data layers, so that no data are read while times are
    measured. The data must exist, as they give the shapes. ``batch`` is the new first axis of every
    input whose first axis equals that of the first input with axes.
    """
    with Net(path, phase, device="numpy") as net:
        structure = net.structure
        sources = {
            layer.name: structure.top_ids(index)
            for index, layer in enumerate(net.layers)
            if not structure.bottom_ids(index) and not layer.blobs
        }
        tops = [top for tops in sources.values() for top in tops]
        inputs = {net.blob_names[top]: structure.blob_list[top].shape for top in tops}
    if not inputs:
        message = f"{path} has no inputs, and so no batch size"
        raise NetError(message, code=ErrorCode.MISSING, field="input")
    first = next(filter(None, inputs.values()), ())
    param = NetParameter()
    param.CopyFrom(read_net(path).message)
    layers = [layer for layer in param.layer if layer.name not in sources]
    del param.layer[:]
    for name, shape in inputs.items():
        layer = param.layer.add(name=name, type="Input", top=[name])
        grows = bool(shape) and shape[0] == first[0]
        layer.input_param.shape.add(dim=[batch, *shape[1:]] if grows else shape)
    param.layer.extend(layers)
    return param


def load_values(net: Net, path: Path) -> None:
    """Give a net the values that its time and results may depend on.

    The weights file beside the prototxt is loaded if it is the only one and fits the net. Untrained
    batch normalisation divides by almost 0, and values would overflow after a few layers; its
    variances become 1.
    """
    beside = [file for file in path.parent.iterdir() if file.name.endswith(WEIGHTS)]
    if len(beside) == 1:
        with suppress(DemitasseError):  # weights of another net
            net.load(beside[0])
    for layer in net.layers:
        if layer.type == "BatchNorm" and not layer.blobs[2].cpu_data().any():
            for statistics in layer.blobs[1:3]:
                statistics.mutable_cpu_data()[...] = 1


def idle_solver(net: NetParameter, type: str = "SGD", **options: Any) -> Solver:
    """Return a solver that runs the whole update, with a rate that leaves the weights unchanged."""
    fields = SolverParameter(
        type=type, base_lr=1e-12, lr_policy="fixed", snapshot_after_train=False
    )
    if type not in {"AdaGrad", "RMSProp"}:  # these types have no momentum
        fields.momentum = 0.9
    fields.net_param.CopyFrom(net)
    return Solver(fields, seed=1, **options)


def deploy_nets(folder: str | Path) -> list[Path]:
    """Return the prototxts of nets with inputs that lie beside weights, in a folder and below it.

    Raises:
        DataError: There are none.
    """
    folder = Path(folder)
    beside = {path.parent for path in folder.rglob("*") if path.name.endswith(WEIGHTS)}
    found = [path for parent in sorted(beside) for path in sorted(parent.glob("*.prototxt"))]
    nets = []
    for path in found:
        with suppress(DemitasseError):  # a solver's
            if any(layer.type == "Input" for layer in read_net(path).message.layer):
                nets.append(path)
    if not nets:
        message = f"{folder} has no prototxt with inputs beside a .caffemodel file"
        raise DataError(message, code=ErrorCode.NOT_FOUND, got=str(folder))
    return nets

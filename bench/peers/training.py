"""The step that is measured: its solver, and which parameters gradients are compared of."""

from collections.abc import Iterator

from demitasse import Net
from demitasse.blob import Blob
from demitasse.io.proto import NetParameter, SolverParameter, parse_text
from demitasse.training import Solver
from peers.cases import DECAY, MOMENTUM

__all__ = ["learnable", "solver_of"]


def solver_of(message: NetParameter, rate: float, **options: object) -> Solver:
    """Return the solver of the step that is measured."""
    fields = f'base_lr: {rate} lr_policy: "fixed" momentum: {MOMENTUM} weight_decay: {DECAY}'
    param = parse_text(f"{fields} snapshot_after_train: false", SolverParameter)
    param.net_param.CopyFrom(message)
    return Solver(param, **options)  # type: ignore[arg-type]


def learnable(net: Net) -> Iterator[tuple[str, Blob]]:
    """Yield key and blob of the parameters that gradients are compared of."""
    for layer in net.layers:
        if layer.type != "BatchNorm":  # its parameters are statistics
            yield from ((f"{layer.name}/{i}", blob) for i, blob in enumerate(layer.blobs))

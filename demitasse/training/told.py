"""What loggers are told of a run when it begins."""

from __future__ import annotations

from demitasse.core.log import number
from demitasse.io.proto import SolverParameter
from demitasse.io.proto.write import text_of
from demitasse.net import Net
from demitasse.training.pace import images_of_a_pass
from demitasse.version import __version__

__all__ = ["about_run"]


def about_run(param: SolverParameter, net: Net, ranks: int) -> dict[str, object]:
    """Return the facts of the event ``begin``; ``prototxt`` is the net as built."""
    return {
        "demitasse": __version__,
        "net": net.name,
        "device": net.device.name,
        "dtype": net.dtype,
        "solver": param.type,
        "base_lr": float(number(param.base_lr)),  # as written, not as float32 has it
        "lr_policy": param.lr_policy,
        "max_iter": param.max_iter,
        "batch": images_of_a_pass(net),
        "iter_size": param.iter_size,
        "ranks": ranks,
        "seed": net.seed,
        "prototxt": text_of(net.structure.message),
    }

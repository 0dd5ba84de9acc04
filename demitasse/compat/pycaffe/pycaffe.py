"""``caffe.pycaffe``: nets and solvers under Caffe's module name.

Source: Caffe, ``python/caffe/pycaffe.py``.
"""

from demitasse.compat.pycaffe.common import Timer
from demitasse.compat.pycaffe.net import Net
from demitasse.compat.pycaffe.solver import (
    NCCL,
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    SGDSolver,
)

__all__ = [
    "NCCL",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "NesterovSolver",
    "Net",
    "RMSPropSolver",
    "SGDSolver",
    "Timer",
]

"""Nets and solvers where Caffe's own code keeps them: ``caffe.pycaffe``.

Source: Caffe, ``python/caffe/pycaffe.py``.
"""

from demitasse.compat.pycaffe.net import Net
from demitasse.compat.pycaffe.parallel import NCCL
from demitasse.compat.pycaffe.solver import (
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    SGDSolver,
)
from demitasse.compat.pycaffe.timer import Timer

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

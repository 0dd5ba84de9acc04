"""Nets and solvers where Caffe's own code keeps them: ``caffe.pycaffe``.

Source: Caffe, ``python/caffe/pycaffe.py``.
"""

from demitasse.pycaffe.net import Net
from demitasse.pycaffe.parallel import NCCL
from demitasse.pycaffe.solver import (
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    SGDSolver,
)
from demitasse.pycaffe.timer import Timer

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

"""What Caffe's compiled module offers: ``caffe._caffe``.

Source: Caffe, ``python/caffe/_caffe.cpp``.
"""

from demitasse.blob import Blob
from demitasse.compat.pycaffe import __version__
from demitasse.compat.pycaffe.glog import init_log, log
from demitasse.compat.pycaffe.modes import (
    layer_type_list,
    set_device,
    set_mode_cpu,
    set_mode_gpu,
    set_random_seed,
)
from demitasse.compat.pycaffe.net import Net, NetVec
from demitasse.compat.pycaffe.parallel import (
    NCCL,
    has_nccl,
    set_multiprocess,
    set_solver_count,
    set_solver_rank,
    solver_count,
    solver_rank,
)
from demitasse.compat.pycaffe.solver import (
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    SGDSolver,
    Solver,
    get_solver,
)
from demitasse.compat.pycaffe.timer import Timer
from demitasse.compat.pycaffe.vectors import BoolVec, DtypeVec, IntVec, LayerVec, StringVec
from demitasse.io.proto import LayerParameter, SolverParameter
from demitasse.layers.user_layer import BlobVec, RawBlobVec
from demitasse.layers.user_layer import UserLayer as Layer

__all__ = [
    "NCCL",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "Blob",
    "BlobVec",
    "BoolVec",
    "DtypeVec",
    "IntVec",
    "Layer",
    "LayerParameter",
    "LayerVec",
    "NesterovSolver",
    "Net",
    "NetVec",
    "RMSPropSolver",
    "RawBlobVec",
    "SGDSolver",
    "Solver",
    "SolverParameter",
    "StringVec",
    "Timer",
    "__version__",
    "get_solver",
    "has_nccl",
    "init_log",
    "layer_type_list",
    "log",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_multiprocess",
    "set_random_seed",
    "set_solver_count",
    "set_solver_rank",
    "solver_count",
    "solver_rank",
]

"""``caffe._caffe``: names of Caffe's compiled module.

Source: Caffe, ``python/caffe/_caffe.cpp``.
"""

from demitasse.blob import Blob
from demitasse.compat.pycaffe import __version__
from demitasse.compat.pycaffe.common import (
    Timer,
    init_log,
    layer_type_list,
    log,
    set_device,
    set_mode_cpu,
    set_mode_gpu,
    set_random_seed,
)
from demitasse.compat.pycaffe.net import BoolVec, DtypeVec, IntVec, LayerVec, Net, NetVec, StringVec
from demitasse.compat.pycaffe.solver import (
    NCCL,
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    SGDSolver,
    Solver,
    get_solver,
    has_nccl,
    set_multiprocess,
    set_solver_count,
    set_solver_rank,
    solver_count,
    solver_rank,
)
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

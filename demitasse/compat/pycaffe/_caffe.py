"""``caffe._caffe``: names of Caffe's compiled module.

Source: Caffe, ``python/caffe/_caffe.cpp``.
"""

# ruff: noqa: F401, F403 - names that programs import from here

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
from demitasse.compat.pycaffe.solver import *
from demitasse.io.proto import LayerParameter, SolverParameter
from demitasse.layers.user_layer import BlobVec, RawBlobVec
from demitasse.layers.user_layer import UserLayer as Layer

"""``caffe.pycaffe``: nets and solvers under Caffe's module name.

Source: Caffe, ``python/caffe/pycaffe.py``.
"""

# ruff: noqa: F401, F403 - names that programs import from here

from demitasse.compat.pycaffe.common import Timer
from demitasse.compat.pycaffe.net import Net
from demitasse.compat.pycaffe.solver import *

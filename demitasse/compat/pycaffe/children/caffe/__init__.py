"""Caffe's Python interface, by Demitasse, for processes whose PYTHONPATH names this folder."""

import sys

from demitasse import pycaffe

pycaffe.install()
sys.modules[__name__] = pycaffe

"""Caffe's Python interface, by Demitasse."""

import sys

from demitasse import pycaffe

pycaffe.install()
sys.modules[__name__] = pycaffe

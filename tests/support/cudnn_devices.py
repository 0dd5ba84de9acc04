"""Devices whose convolutions the stand-in for cuDNN computes."""

import sys
from contextlib import contextmanager

import pytest
from cuda_host import HostEngine, host_cuda, need_compiler
from gpu import machine
from gpu.package import in_place

from demitasse.backends.cupy.library.cudnn import Cudnn
from demitasse.backends.cupy.library.cudnn_library import status
from demitasse.core.device import Device


class CudnnEngine(HostEngine):
    """The host's engine with what cuDNN needs besides.

    Attributes:
        current: The stream that is current.
        times: What ``elapsed`` answers, one after the other.
    """

    def __init__(self):
        super().__init__()
        self.current, self.times = 0, []
        self.cudnn = Cudnn(self, 0)

    def stream(self):
        return self.current

    def elapsed(self, work):
        work()
        return self.times.pop(0)


@contextmanager
def installed(frontend):
    """Have the stand-in installed, and nothing loaded yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cudnn", frontend)
        status.cache_clear()
        yield frontend
    status.cache_clear()


def with_cudnn():
    """A device whose convolutions cuDNN computes."""
    device = host_cuda()
    device.backend.engine = CudnnEngine()
    return device


@contextmanager
def gpu_with_cudnn(frontend):
    """A GPU of the stand-in for cupy, with its lazy queues, streams and capture."""
    need_compiler()
    with in_place():
        device = Device("cuda:0")
        engine = device.backend.engine
        engine.__dict__.pop("_cudnn", None)
        frontend.submit = lambda stream, work: machine.queue_at(stream).add(work)
        try:
            yield device
        finally:
            engine.__dict__.pop("_cudnn", None)

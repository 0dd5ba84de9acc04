"""Calls of deconvolutions whose windows are many times what they add up to.

The library computes all windows of an image, and adds them up then: they go to memory and come from
there. Here those of one channel at a time are computed and added up, which stay in the caches.
"""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.kernels.overlaps import Overlaps
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.primitive import Primitive
from demitasse.backends.onednn.own_kernels.calls import KernelCall
from demitasse.backends.onednn.ports import Parameter, Reader, Writer

__all__ = ["PlaneCall"]


class PlaneCall(KernelCall):
    """A deconvolution of one group over two axes without a bias, in C order.

    Args:
        engine: The engine.
        op: The deconvolution.
        ports: Bottom, weight and top, in C order.
        tuning: The kernel's vectors and threads.

    Raises:
        Declined: The library has no product for it.
    """

    def __init__(
        self,
        engine: Engine,
        op: ops.Deconv,
        ports: tuple[Reader, Parameter, Writer],
        tuning: Tuning,
    ) -> None:
        images, channels, *bottom = op.bottom
        planes, top = op.top[1], op.top[2:]
        pixels, window = math.prod(bottom), math.prod(op.kernel)
        x = engine.strided((pixels, channels), (1, pixels))
        w = engine.strided((channels, window), (planes * window, 1))
        y = engine.plain((pixels, window))
        found = engine.describe("matmul", x, w, None, y.handle, engine.attributes)
        uses = (Arg.SRC, x), (Arg.WEIGHTS, w), (Arg.DST, y.handle)
        self._product = Primitive(engine.stream, found, uses)
        self._kernel = Overlaps((1, *bottom), (1, *top, 1), op.kernel, op.stride, op.pad, tuning)
        self._counts, self._size = (images, planes), y.size
        self._steps = channels * pixels, window, math.prod(top)
        super().__init__(
            engine, ports, f"{found.implementation}, overlaps llvm:{tuning.instructions}"
        )
        ports[2].promise(engine)

    def __call__(self) -> None:
        source, weights, target = (port.array() for port in self.ports)
        [windows] = self.engine.workspaces(self._size)
        (images, planes), (image_step, window, plane_step) = self._counts, self._steps
        product = self._product
        product.bind(product.place(Arg.DST), windows)
        for plane in range(planes):
            product.bind(product.place(Arg.WEIGHTS), weights[plane * window :])
            for image in range(images):
                product.bind(product.place(Arg.SRC), source[image * image_step :])
                product.run()
                self._kernel(windows, target[(image * planes + plane) * plane_step :])

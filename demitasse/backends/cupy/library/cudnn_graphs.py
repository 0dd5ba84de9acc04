"""Convolutions as graphs of cuDNN's frontend.

Every tensor has its number, its shape and its strides given: cuDNN would infer an output whose
channels come last, and cannot know the size of a gradient.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from demitasse.backends.cupy.library.convolutions import Convolution
from demitasse.backends.step import Declined
from demitasse.backends.storage import ARRAYS
from demitasse.backends.windows import Shape

__all__ = ["BIAS", "IMAGE", "MAPS", "MOST_AXES", "WEIGHT", "graph_of"]

IMAGE, WEIGHT, MAPS, BIAS = 1, 2, 3, 4
"""Numbers of the tensors."""

MOST_AXES = 3
"""Spatial axes that cuDNN knows, at most."""

DTYPES = {"float32": "FLOAT", "float64": "DOUBLE", "half": "HALF", "bfloat16": "BFLOAT16"}


def graph_of(cudnn: ModuleType, convolution: Convolution, properties: Any) -> Any:
    """Return the graph of a convolution, checked, for which no plan has been made yet.

    Args:
        cudnn: The frontend.
        convolution: What is computed.
        properties: The frontend's properties of the GPU that it is for.

    Raises:
        Declined: cuDNN has no such convolution.
    """
    _check(convolution)
    graph = _Graph(cudnn, convolution, properties).made()
    graph.validate()
    graph.build_operation_graph()
    return graph


def _check(convolution: Convolution) -> None:
    """Raise Declined for what no graph can be made of."""
    axes = len(convolution.geometry.spatial)
    if axes > MOST_AXES:
        message = f"{axes} spatial axes; cuDNN convolves over {MOST_AXES} at most"
        raise Declined(message)
    if not all(map(math.prod, (convolution.image, convolution.weight, convolution.maps))):
        message = "no elements; cuDNN takes no empty arrays"
        raise Declined(message)


class _Graph:
    """A graph while it is made."""

    def __init__(self, cudnn: ModuleType, convolution: Convolution, properties: Any) -> None:
        self.convolution = convolution
        self.dtype = getattr(cudnn.data_type, DTYPES[convolution.dtype])
        # what is kept in 16 bits is added up, and has its bias, in float32
        self.computed = cudnn.data_type.FLOAT if convolution.dtype in ARRAYS else self.dtype
        self.missing = max(0, 2 - len(convolution.geometry.spatial))
        self.graph = cudnn.pygraph(
            io_data_type=self.dtype,
            intermediate_data_type=self.computed,
            compute_data_type=self.computed,
            device_property=properties,
        )

    def made(self) -> Any:
        """Return the graph with its operations."""
        graph, convolution = self.graph, self.convolution
        window = convolution.geometry.window
        sizes = {
            "padding": self._axes(window.pad, 0),
            "stride": self._axes(window.stride, 1),
            "dilation": self._axes(window.dilation, 1),
        }
        image, weight, maps = map(self._shape, _shapes(convolution))
        match convolution.result:
            case "maps":
                x, w = self._input("image", image, IMAGE), self._input("weight", weight, WEIGHT)
                result = self._appended(graph.conv_fprop(image=x, weight=w, **sizes), maps)
                self._output(result, maps, MAPS)
            case "image":
                dy, w = self._input("maps", maps, MAPS), self._input("weight", weight, WEIGHT)
                self._output(graph.conv_dgrad(loss=dy, filter=w, **sizes), image, IMAGE)
            case "weight":
                x, dy = self._input("image", image, IMAGE), self._input("maps", maps, MAPS)
                self._output(graph.conv_wgrad(image=x, loss=dy, **sizes), weight, WEIGHT)
        return graph

    def _appended(self, result: Any, shape: list[int]) -> Any:
        """Return what follows a map in the same graph."""
        if self.convolution.bias:
            self._sized(result, shape, self.computed)
            shape_of_bias = [1, shape[1], *[1] * (len(shape) - 2)]
            bias = self._input("bias", shape_of_bias, BIAS, self.computed)
            result = self.graph.bias(input=result, bias=bias)
        if self.convolution.relu:
            self._sized(result, shape, self.computed)
            result = self.graph.relu(input=result)
        return result

    def _input(self, name: str, shape: list[int], number: int, dtype: Any = None) -> Any:
        return self.graph.tensor(
            name=name, dim=shape, stride=_strides(shape), data_type=dtype or self.dtype, uid=number
        )

    def _output(self, tensor: Any, shape: list[int], number: int) -> None:
        self._sized(tensor, shape, self.dtype)
        tensor.set_output(True)
        tensor.set_uid(number)

    def _sized(self, tensor: Any, shape: list[int], dtype: Any) -> None:
        tensor.set_dim(shape)
        tensor.set_stride(_strides(shape))
        tensor.set_data_type(dtype)

    def _shape(self, shape: Shape) -> list[int]:
        """Return a shape with two spatial axes at least: one axis is a width."""
        return [*shape[:2], *[1] * self.missing, *shape[2:]]

    def _axes(self, numbers: Shape, neutral: int) -> list[int]:
        return [*[neutral] * self.missing, *numbers]


def _shapes(convolution: Convolution) -> tuple[Shape, Shape, Shape]:
    return convolution.image, convolution.weight, convolution.maps


def _strides(shape: list[int]) -> list[int]:
    """Return the strides of a dense array in C order, in elements."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]

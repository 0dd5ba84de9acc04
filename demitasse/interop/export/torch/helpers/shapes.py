"""Choosing values."""

import torch


def last_largest(x, count, axis):
    """Return the largest values and where they are; of equal ones Caffe takes the last."""
    order = torch.argsort(x.flip(axis), dim=axis, descending=True, stable=True)
    index = x.shape[axis] - 1 - order.narrow(axis, 0, count)
    return torch.gather(x, axis, index), index.to(x.dtype)

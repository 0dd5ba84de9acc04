"""Normalisation."""

import torch
import torch.nn.functional as F  # noqa: N812


def lrn_within_channel(x, size, alpha, beta):
    """Divide by the energy of the neighbouring pixels, as Caffe's WITHIN_CHANNEL does."""
    energy = F.avg_pool2d(x * x, size, stride=1, padding=size // 2)
    return x * (1 + alpha * energy) ** -beta


def batch_norm_of_batch(x, eps):
    """Normalise by the mean and variance of the batch itself, for each channel."""
    axes = [axis for axis in range(x.ndim) if axis != 1]
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + eps)


def mvn(x, axes, normalize_variance, eps):
    """Take off the mean, and divide by the deviation."""
    centred = x - x.mean(axes, keepdim=True)
    if not normalize_variance:
        return centred
    return centred / ((centred * centred).mean(axes, keepdim=True).sqrt() + eps)


def normalize(x, axes, eps, weights):
    """Divide by the length along some axes, and scale."""
    return x / torch.sqrt((x * x).sum(axes, keepdim=True) + eps) * weights["weight"]

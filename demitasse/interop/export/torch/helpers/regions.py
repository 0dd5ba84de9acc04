"""Pooling of regions of interest."""

import torch


def half_away(x):
    """Round to whole numbers, halves away from zero."""
    return torch.trunc(x.double() + torch.copysign(torch.full_like(x, 0.5), x).double())


def bin_edges(extent, start, shift, bins, length):
    """Return the first pixel of every bin and the one after its last. Shapes: (R, bins)."""
    numbers = torch.arange(bins + 1, dtype=extent.dtype, device=extent.device)
    edge = numbers * extent[:, None] + start[:, None]
    low = (edge[:, :-1].floor() + shift[:, None]).clamp(0, length).long()
    high = (edge[:, 1:].ceil() + shift[:, None]).clamp(0, length).long()
    return low, torch.maximum(low, high)


def roi_pool(x, rois, pooled, scale):
    """Return the largest value of each bin of each region; 0 of an empty bin.

    Shapes: x (N, C, H, W), rois (R, 5): item, x1, y1, x2, y2 -> (R, C, *pooled).
    """
    rois = rois.reshape(-1, 5)
    corners = half_away(rois[:, 1:] * scale)
    spans = []
    for axis in (1, 0):
        first, bins, length = corners[:, axis], pooled[1 - axis], x.shape[3 - axis]
        extent = (corners[:, axis + 2] - first + 1).clamp(min=1).to(x.dtype) / bins
        spans.append(bin_edges(extent, torch.zeros_like(extent), first, bins, length))
    (top, bottom), (left, right) = spans
    found = x.new_zeros((len(rois), x.shape[1], *pooled))
    for region, item in enumerate(rois[:, 0].long().tolist()):
        for i in range(pooled[0]):
            for j in range(pooled[1]):
                rows = slice(top[region, i], bottom[region, i])
                part = x[item, :, rows, left[region, j] : right[region, j]]
                if part.numel():
                    found[region, :, i, j] = part.amax((1, 2))
    return found


def psroi_pool(x, rois, channels, group, scale):
    """Return the mean of each bin of each region, every bin from maps of its own.

    Shapes: x (N, channels * group * group, H, W), rois (R, 5): item, x1, y1, x2, y2
    -> (R, channels, group, group).
    """
    rois = rois.reshape(-1, 5)
    corners = half_away(rois[:, 1:]).to(x.dtype)
    spans = []
    for axis in (1, 0):
        start = corners[:, axis] * scale
        extent = ((corners[:, axis + 2] + 1) * scale - start).clamp(min=0.1) / group
        shift = torch.zeros_like(start)
        spans.append(bin_edges(extent, start, shift, group, x.shape[3 - axis]))
    (top, bottom), (left, right) = spans
    maps = x.unflatten(1, (channels, group, group))
    found = x.new_zeros((len(rois), channels, group, group))
    for region, item in enumerate(rois[:, 0].long().tolist()):
        for i in range(group):
            for j in range(group):
                rows = slice(top[region, i], bottom[region, i])
                columns = slice(left[region, j], right[region, j])
                part = maps[item, :, i, j, rows, columns]
                if part.numel():
                    found[region, :, i, j] = part.mean((1, 2))
    return found

"""PyTorch functions that exported modules contain: source text, not imported here."""

import torch
import torch.nn.functional as F  # noqa: N812


def box_overlaps(box, boxes):
    """Return intersection over union. Shapes: (4,), (K, 4) -> (K,)."""
    sides = torch.minimum(box[2:], boxes[:, 2:]) - torch.maximum(box[:2], boxes[:, :2])
    shared = sides[:, 0] * sides[:, 1]
    ends = boxes[:, 2:] - boxes[:, :2]
    area = torch.where((ends < 0).any(1), 0, ends[:, 0] * ends[:, 1])
    own = (box[2:] - box[:2]).clamp(min=0).prod()
    return torch.where((sides > 0).all(1), shared / (own + area - shared), 0)


def suppress(boxes, overlap, eta=1.0):
    """Return the indices of boxes after non-maximum suppression, by descending score.

    Shapes: (K, 4), by descending score -> (S,).
    """
    kept = []
    rest = torch.arange(len(boxes), device=boxes.device)
    worst = boxes.new_zeros(len(boxes))
    while len(rest):
        best, rest = rest[0], rest[1:]
        kept.append(best)
        worst = torch.maximum(worst[1:], box_overlaps(boxes[best], boxes[rest]))
        if eta < 1 and overlap > 0.5:
            overlap *= eta
        stays = worst <= overlap
        rest, worst = rest[stays], worst[stays]
    return torch.stack(kept) if kept else rest


def decode_boxes(code, priors, kind, variance_in_target):
    """Return boxes from codes relative to priors.

    Shapes: code (N, P, L, 4), priors (2, P, 1, 4): boxes and variances -> (N, P, L, 4).
    """
    prior, variance = priors
    offset = code if variance_in_target else variance * code
    if kind == "CORNER":
        return prior + offset
    low, high = prior[..., :2], prior[..., 2:]
    size = high - low
    if kind == "CORNER_SIZE":
        return prior + offset * torch.cat([size, size], -1)
    centre = offset[..., :2] * size + (low + high) / 2
    half = torch.exp(offset[..., 2:]) * size / 2
    return torch.cat([centre - half, centre + half], -1)


def detection_output(
    location,
    score,
    prior,
    *,
    classes,
    background,
    shared,
    code,
    variance_in_target,
    confidence,
    overlap,
    eta,
    top_k,
    keep,
):
    """Return rows of image, class, score and box, by descending score for each class.

    Without any detection, each image has a row of its index and -1.

    Shapes: location (N, P L 4), score (N, P classes), prior (1, 2, P 4)
    -> (1, 1, rows, 7).
    """
    n, count = len(score), prior.numel() // 8
    location = location.reshape(n, count, 1 if shared else classes, 4)
    score = score.reshape(n, count, classes)
    priors = prior.reshape(2, count, 1, 4)
    boxes = decode_boxes(location, priors, code, variance_in_target)
    rows = []
    for image in range(n):
        found = []
        for label in range(classes):
            if label == background:
                continue
            candidates = (score[image, :, label] > confidence).nonzero()[:, 0]
            values = score[image, candidates, label]
            order = torch.argsort(-values, stable=True)[: top_k if top_k > -1 else None]
            chosen = boxes[image, candidates[order], 0 if shared else label]
            stays = suppress(chosen, overlap, eta)
            best = values[order][stays, None]
            about = torch.ones_like(best) * best.new_tensor([image, label])
            found.append(torch.cat([about, best, chosen[stays]], 1))
        every = torch.cat(found)
        if 0 <= keep < len(every):
            best = torch.argsort(-every[:, 2], stable=True)[:keep]
            every = every[best.sort().values]
        rows.append(every)
    every = torch.cat(rows)
    if not len(every):
        every = score.new_full((n, 7), -1)
        every[:, 0] = torch.arange(n, device=score.device)
    return every[None, None]


def move_anchors(anchors, deltas):
    """Shift the centers of boxes in proportion to their sides, and scale the sides.

    Shapes: (..., 4), (..., 4) -> (..., 4).
    """
    size = anchors[..., 2:] - anchors[..., :2] + 1
    centre = anchors[..., :2] + size / 2 + deltas[..., :2] * size
    half = torch.exp(deltas[..., 2:]) * size / 2
    return torch.cat([centre - half, centre + half], -1)


def propose(
    score, delta, images, anchors, *, stride, min_size, pre_nms_top_n, post_nms_top_n, overlap
):
    """Return regions that may contain an object, and their scores.

    Shapes: score (N, 2 A, H, W), delta (N, 4 A, H, W), images (N, 3): height, width and
    scale, anchors (A, 4) -> (R, 5): image, x1, y1, x2, y2, and (R, 1).
    """
    count, (height, width) = len(anchors), score.shape[2:]
    values = score[:, count:].permute(0, 2, 3, 1).flatten(1)
    deltas = delta.permute(0, 2, 3, 1).reshape(len(score), -1, 4)
    rows = torch.arange(height, dtype=score.dtype, device=score.device) * stride
    columns = torch.arange(width, dtype=score.dtype, device=score.device) * stride
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    placed = anchors + torch.stack([x, y, x, y], -1)[:, :, None]
    boxes = move_anchors(placed.reshape(-1, 4), deltas)
    regions, chances = [], []
    for image, sides in enumerate(images.reshape(-1, 3)):
        ends = torch.stack([sides[1], sides[0], sides[1], sides[0]]) - 1
        inside = torch.minimum(boxes[image].clamp(min=0), ends)
        size = inside[:, 2:] - inside[:, :2] + 1
        large = (size >= min_size * sides[2]).all(1).nonzero()[:, 0]
        order = large[torch.argsort(-values[image, large], stable=True)]
        order = order[: pre_nms_top_n or None]
        behind = inside[order] + inside.new_tensor([0, 0, 1, 1])
        order = order[suppress(behind, overlap)][: post_nms_top_n or None]
        number = inside.new_full((len(order), 1), image)
        regions.append(torch.cat([number, inside[order]], 1))
        chances.append(values[image, order, None])
    return torch.cat(regions), torch.cat(chances)


def lrn_within_channel(x, size, alpha, beta):
    """Apply LRN with Caffe's WITHIN_CHANNEL: divide by the energy of neighboring pixels."""
    energy = F.avg_pool2d(x * x, size, stride=1, padding=size // 2)
    return x * (1 + alpha * energy) ** -beta


def batch_norm_of_batch(x, eps):
    """Normalize each channel by mean and variance of the batch."""
    axes = [axis for axis in range(x.ndim) if axis != 1]
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + eps)


def mvn(x, axes, normalize_variance, eps):
    """Subtract the mean, and divide by the deviation."""
    centred = x - x.mean(axes, keepdim=True)
    if not normalize_variance:
        return centred
    return centred / ((centred * centred).mean(axes, keepdim=True).sqrt() + eps)


def normalize(x, axes, eps, weights):
    """Divide by the L2 norm along axes, and scale."""
    return x / torch.sqrt((x * x).sum(axes, keepdim=True) + eps) * weights["weight"]


def caffe_windows(length, kernel, stride, pad, padded, ceil):
    """Return the number of Caffe's windows along an axis, and the pad at its end.

    If an axis has pads, a window that starts after the image is dropped.
    """
    span = length + 2 * pad - kernel
    count = (-(-span // stride) if ceil else span // stride) + 1
    if padded and (count - 1) * stride >= length + pad:
        count -= 1
    return count, max(0, (count - 1) * stride + kernel - length - pad)


def caffe_pool(x, mode, kernel, stride, pad, ceil):
    """Pool an image with Caffe's windows, which can exceed the image.

    Shapes: (N, C, H, W) -> (N, C, rows, columns).
    """
    along = zip(x.shape[2:], kernel, stride, pad, strict=True)
    fits = [caffe_windows(*each, any(pad), ceil) for each in along]
    (rows, below), (columns, right) = fits
    edges = (pad[1], right, pad[0], below)
    if mode == "max":
        lowest = torch.finfo(x.dtype).min
        return F.max_pool2d(F.pad(x, edges, value=lowest), kernel, stride)
    area = torch.ones((), dtype=x.dtype, device=x.device)
    axes = zip((rows, columns), stride, kernel, pad, x.shape[2:], strict=True)
    for count, step, size, before, length in axes:
        start = torch.arange(count, dtype=x.dtype, device=x.device) * step - before
        area = area[..., None] * ((start + size).clamp(max=length + before) - start)
    sums = F.avg_pool2d(F.pad(x, edges), kernel, stride, divisor_override=1)
    return sums / torch.where(area == 0, torch.nan, area)


def padded_pool(x, mode, kernel, stride, counted, beyond):
    """Pool an image with pads given for each side, in the order of F.pad.

    A mean counts the pads ``counted``, not those ``beyond``; negative pads crop.
    """
    axes = len(kernel) - 1
    if mode == "max":
        pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[axes]
        lowest = torch.finfo(x.dtype).min
        wide = F.pad(F.pad(x, counted, value=lowest), beyond, value=lowest)
        return pool(wide, kernel, stride)
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[axes]
    means = pool(F.pad(F.pad(x, counted), beyond), kernel, stride)
    ones = F.pad(F.pad(torch.ones_like(x), counted, value=1.0), beyond)
    parts = pool(ones, kernel, stride)
    return means / torch.where(parts == 0, torch.nan, parts)


def expected_pool(x, kernel, stride, pad, ceil):
    """Return the expected value of stochastic pooling: sum of squares over sum."""
    squares = caffe_pool(x * x, "mean", kernel, stride, pad, ceil)
    return squares / (caffe_pool(x, "mean", kernel, stride, pad, ceil) + 1.1754944e-38)


def unpool(x, mask, height, width):
    """Scatter values to the indices of a pooling mask, with zeros elsewhere.

    Shapes: x and mask (N, C, h, w) -> (N, C, height, width).
    """
    empty = x.new_zeros((*x.shape[:-2], height * width))
    filled = empty.scatter(-1, mask.flatten(-2).long(), x.flatten(-2))
    return filled.unflatten(-1, (height, width))


def affine(x, weights):
    """Multiply by the weight and add the bias, if present."""
    y = x * weights["weight"] if "weight" in weights else x
    return y + weights["bias"] if "bias" in weights else y


def lstm_step(gates, cells, cont):
    """Return cell state and hidden state after one step.

    Shapes: gates (N, 4 H), cells (N, H), cont (N, 1) -> twice (N, H).
    """
    i, f, o, g = gates.chunk(4, dim=1)
    cells = cont * torch.sigmoid(f) * cells + torch.sigmoid(i) * torch.tanh(g)
    return cells, torch.sigmoid(o) * torch.tanh(cells)


def gate_inputs(x, weights, static):
    """Return the gate inputs of all steps, without the hidden state. Shape: (T, N, G)."""
    z = x.flatten(2) @ weights["weight"].T + weights["bias"]
    if static is None:
        return z
    return z + static.flatten(1) @ weights["static_weight"].T


def lstm(x, cont, weights, static=None, hidden=None, cells=None):
    """Run an LSTM over time.

    Shapes: x (T, N, ...), cont (T, N) -> outputs (T, N, H), final hidden state and cell
    state (1, N, H). A sequence starts where ``cont`` is 0.
    """
    z, recurrent = gate_inputs(x, weights, static), weights["hidden_weight"].T
    nothing = z.new_zeros((z.shape[1], recurrent.shape[0]))
    h = nothing if hidden is None else hidden.reshape(nothing.shape)
    c = nothing if cells is None else cells.reshape(nothing.shape)
    outputs = []
    for inputs, mark in zip(z, cont[..., None], strict=True):
        c, h = lstm_step(inputs + (mark * h) @ recurrent, c, mark)
        outputs.append(h)
    return torch.stack(outputs), h[None], c[None]


def rnn(x, cont, weights, static=None, hidden=None):
    """Run an RNN over time.

    Shapes: x (T, N, ...), cont (T, N) -> outputs (T, N, H), final hidden state
    (1, N, H). A sequence starts where ``cont`` is 0.
    """
    z, recurrent = gate_inputs(x, weights, static), weights["hidden_weight"].T
    nothing = z.new_zeros((z.shape[1], recurrent.shape[0]))
    h = nothing if hidden is None else hidden.reshape(nothing.shape)
    states = []
    for inputs, mark in zip(z, cont[..., None], strict=True):
        h = torch.tanh(inputs + (mark * h) @ recurrent)
        states.append(h)
    outputs = torch.stack(states) @ weights["output_weight"].T + weights["output_bias"]
    return torch.tanh(outputs), h[None]


def half_away(x):
    """Round to integers, halves away from zero."""
    return torch.trunc(x.double() + torch.copysign(torch.full_like(x, 0.5), x).double())


def bin_edges(extent, start, shift, bins, length):
    """Return the first pixel of every bin and the end of the bin. Shapes: (R, bins)."""
    numbers = torch.arange(bins + 1, dtype=extent.dtype, device=extent.device)
    edge = numbers * extent[:, None] + start[:, None]
    low = (edge[:, :-1].floor() + shift[:, None]).clamp(0, length).long()
    high = (edge[:, 1:].ceil() + shift[:, None]).clamp(0, length).long()
    return low, torch.maximum(low, high)


def widened_regions(rois, ratio):
    """Return regions that are wider on each side by a ratio of their size. Shape: (R, 5)."""
    pads = (rois[:, 3:] - rois[:, 1:3] + 1) * ratio
    return torch.cat([rois[:, :1], rois[:, 1:3] - pads, rois[:, 3:] + pads], 1)


def roi_align(x, rois, pooled, scale, ratio):
    """Interpolate the map at the corners of the bins of each region; 0 beyond the map.

    Shapes: x (N, C, H, W), rois (R, 5): item, x1, y1, x2, y2 -> (R, C, rows + 1, columns + 1).
    """
    rois = widened_regions(rois.reshape(-1, 5), ratio)
    corners = rois[:, 1:] * scale - 0.5
    extent = corners[:, 2:] - corners[:, :2]
    whole = (extent > 0).all(1, keepdim=True)
    axes = []
    for axis in (1, 0):
        bins, length = pooled[1 - axis], x.shape[3 - axis]
        steps = torch.arange(bins + 1, dtype=x.dtype, device=x.device)
        place = corners[:, axis, None] + steps * (extent[:, axis, None] / bins)
        inside = whole & (place >= -0.5) & (place <= length - 0.5)
        near = place.floor().clamp(0, length - 1)
        far = (place.floor() + 1).clamp(0, length - 1)
        part = place.clamp(0, length - 1) - near
        axes.append([(near.long(), (1 - part) * inside), (far.long(), part * inside)])
    item, parts = rois[:, 0].long()[:, None, None], []
    for row, down in axes[0]:
        for column, across in axes[1]:
            found = x[item, :, row[:, :, None], column[:, None]]  # (R, rows, columns, C)
            parts.append(found * (down[:, :, None] * across[:, None])[..., None])
    return torch.stack(parts).sum(0).permute(0, 3, 1, 2)


def decode_regions(code, rois, mean, std):
    """Return moved regions. Shapes: code (R, 8), rois (R, 5) -> (R, 5, 1, 1)."""
    code = code.reshape(-1, 8)[:, 4:] * std + mean
    rois = rois.reshape(-1, 5)
    low, high = rois[:, 1:3], rois[:, 3:]
    size = high - low + 1
    sides = size * torch.exp(code[:, 2:])
    first = (low + high) / 2 + code[:, :2] * size - (sides - 1) / 2
    moved = torch.cat([rois[:, :1], first, first + sides - 1], 1)
    return moved[..., None, None]


def group_boxes(score, code, fields, mean, std, *, stride, shift, factor):
    """Return the boxes and scores of a map of anchors.

    Shapes: score (N A, classes, H, W), code (N A, 4, H, W), fields (A, 2) -> (N, K, 4), (N, K).
    """
    count, (height, width) = len(fields), code.shape[2:]
    code = code.reshape(-1, count, 4, height, width).permute(0, 1, 3, 4, 2) * std + mean
    size = fields[:, None, None]
    rows = (torch.arange(height, dtype=code.dtype, device=code.device) + 0.5) * stride
    columns = (torch.arange(width, dtype=code.dtype, device=code.device) + 0.5) * stride
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    sides = size * torch.exp(code[..., 2:].clamp(-factor, factor))
    low = code[..., :2].clamp(-shift, shift) * size + torch.stack([x, y], -1) - sides / 2
    high = torch.minimum(low + sides - 1, code.new_tensor([width * stride, height * stride]))
    boxes = torch.cat([low.clamp(min=0), high], -1).reshape(len(code), -1, 4)
    return boxes, (1 - score[:, 0]).reshape(len(code), -1)


def collect_regions(maps, *, score, overlap, min_size, pre_nms_top_n, post_nms_top_n):
    """Return the regions of several maps of boxes and scores, and the regions with their scores.

    Shapes: (R, 5, 1, 1), (R, 6, 1, 1).
    """
    boxes, values = (torch.cat(one, 1) for one in zip(*maps, strict=True))
    rows = []
    for image in range(len(boxes)):
        size = boxes[image, :, 2:] - boxes[image, :, :2] + 1
        good = (size >= min_size).all(1) & (values[image] >= score)
        chosen = good.nonzero()[:, 0]
        order = chosen[torch.argsort(-values[image, chosen], stable=True)]
        order = order[: pre_nms_top_n or None]
        behind = boxes[image, order] + boxes.new_tensor([0, 0, 1, 1])
        order = order[suppress(behind, overlap)][: post_nms_top_n or None]
        number = boxes.new_full((len(order), 1), image)
        rows.append(torch.cat([number, boxes[image, order], values[image, order, None]], 1))
    every = torch.cat(rows)
    if len(every):
        return every[:, :5, None, None], every[..., None, None]
    return boxes.new_tensor([[0, 1, 1, 10, 10]])[..., None, None], boxes.new_zeros((1, 6, 1, 1))


def yolo_map(x, anchors, classes, *, best_only):
    """Return boxes, scores and classes of a map of YOLO.

    Shapes: x (N, A (5 + classes), H, W), anchors (A, 2), in units of the image
    -> (N, K, 4), (N, K), (N, K).
    """
    (n, _, height, width), count = x.shape, len(anchors)
    values = x.reshape(n, count, 5 + classes, height, width).permute(0, 3, 4, 1, 2)
    rows = torch.arange(height, dtype=x.dtype, device=x.device)
    columns = torch.arange(width, dtype=x.dtype, device=x.device)
    i, j = torch.meshgrid(rows, columns, indexing="ij")
    cells = torch.stack([j, i], -1)[:, :, None]
    centre = (torch.sigmoid(values[..., :2]) + cells) / x.new_tensor([width, height])
    half = torch.exp(values[..., 2:4]) * anchors / 2
    boxes = torch.cat([centre - half, centre + half], -1).reshape(n, -1, 1, 4)
    chance, raw = torch.sigmoid(values[..., 4:5]), values[..., 5:]
    if best_only:
        score = chance * torch.softmax(raw, -1).amax(-1, keepdim=True)
        kind = raw.argmax(-1, keepdim=True)
    else:
        score = chance * torch.sigmoid(raw)
        kind = torch.arange(classes, device=x.device).expand(raw.shape)
    boxes = boxes.expand(-1, -1, score.shape[-1], -1)
    return boxes.reshape(n, -1, 4), score.reshape(n, -1), kind.reshape(n, -1)


def yolo_output(maps, *, above, overlap):
    """Return rows of image, class from 1 on, score and box, by descending score for each image.

    Without any detection, each image has a row of its index and -1.

    Shapes: (1, 1, rows, 7).
    """
    boxes, scores, kinds = (torch.cat(one, 1) for one in zip(*maps, strict=True))
    rows = []
    for image in range(len(boxes)):
        chosen = (scores[image] > above).nonzero()[:, 0]
        order = chosen[torch.argsort(-scores[image, chosen], stable=True)]
        order = order[suppress(boxes[image, order], overlap)]
        number = boxes.new_full((len(order), 1), image)
        kind = kinds[image, order, None].to(boxes.dtype) + 1
        row = [number, kind, scores[image, order, None], boxes[image, order]]
        rows.append(torch.cat(row, 1))
    every = torch.cat(rows)
    if not len(every):
        every = boxes.new_full((len(boxes), 7), -1)
        every[:, 0] = torch.arange(len(boxes), device=boxes.device)
    return every[None, None]


def roi_pool(x, rois, pooled, scale, ratio=0.0):
    """Return the largest value of each bin of each region; 0 for an empty bin.

    Shapes: x (N, C, H, W), rois (R, 5): item, x1, y1, x2, y2 -> (R, C, *pooled).
    """
    rois = widened_regions(rois.reshape(-1, 5), ratio)
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
    """Return the mean of each bin of each region, each bin from separate maps.

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


def last_largest(x, count, axis):
    """Return the largest values and their indices, the last index among equal values."""
    order = torch.argsort(x.flip(axis), dim=axis, descending=True, stable=True)
    index = x.shape[axis] - 1 - order.narrow(axis, 0, count)
    return torch.gather(x, axis, index), index.to(x.dtype)

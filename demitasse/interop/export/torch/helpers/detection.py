"""Boxes: decoding, suppression and choice."""

import torch


def box_overlaps(box, boxes):
    """Return intersection over union. Shapes: (4,), (K, 4) -> (K,)."""
    sides = torch.minimum(box[2:], boxes[:, 2:]) - torch.maximum(box[:2], boxes[:, :2])
    shared = sides[:, 0] * sides[:, 1]
    ends = boxes[:, 2:] - boxes[:, :2]
    area = torch.where((ends < 0).any(1), 0, ends[:, 0] * ends[:, 1])
    own = (box[2:] - box[:2]).clamp(min=0).prod()
    return torch.where((sides > 0).all(1), shared / (own + area - shared), 0)


def suppress(boxes, overlap, eta=1.0):
    """Return which boxes stay, the best first: those that overlap no better one by more.

    Shapes: (K, 4), the best first -> (S,).
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
    """Return the boxes that are predicted relative to priors.

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
    """Return rows of image, class, score and box, the best of each class first.

    Where nothing is found, each image has a row of its index and -1.

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
        every[:, 0] = torch.arange(n)
    return every[None, None]


def move_anchors(anchors, deltas):
    """Shift the centres of boxes in proportion, and scale their sides.

    Shapes: (..., 4), (..., 4) -> (..., 4).
    """
    size = anchors[..., 2:] - anchors[..., :2] + 1
    centre = anchors[..., :2] + size / 2 + deltas[..., :2] * size
    half = torch.exp(deltas[..., 2:]) * size / 2
    return torch.cat([centre - half, centre + half], -1)


def propose(score, delta, images, anchors, *, stride, least, looked_at, keep, overlap):
    """Return regions that may hold an object, and their scores.

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
        large = (size >= least * sides[2]).all(1).nonzero()[:, 0]
        order = large[torch.argsort(-values[image, large], stable=True)]
        order = order[: looked_at or None]
        behind = inside[order] + inside.new_tensor([0, 0, 1, 1])
        order = order[suppress(behind, overlap)][: keep or None]
        number = inside.new_full((len(order), 1), image)
        regions.append(torch.cat([number, inside[order]], 1))
        chances.append(values[image, order, None])
    return torch.cat(regions), torch.cat(chances)
